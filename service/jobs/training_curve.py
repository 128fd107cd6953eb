"""The losses of a training, stored with its job while it runs: what is left to see where no adapter comes of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from registry.errors import Busy, Unavailable
from registry.progress import Progress
from service.jobs.contract import JobContext
from training.losses_file import read_losses

log = logging.getLogger("soup.training")
EVERY_SECONDS = 5.0
"""How often they are stored at most while the training runs."""


@contextmanager
def kept_curve(context: JobContext, path: Path) -> Iterator[Progress]:
    """While open, the losses that are written to `path` are stored as they grow, and at its end, however it ends.

    Gives what the training reports to in place of the job's own progress, which is told all of it.
    """
    stored: dict[str, Any] | None = None
    looked_at = time.monotonic()

    def store() -> None:
        nonlocal stored
        try:
            found = read_losses(path)
            if found is None or found == stored:
                return
            with context.services.registry.database.write() as catalogue:
                catalogue.curves.put(context.row.id, found)
            stored = found
        except (Busy, Unavailable, OSError) as error:  # a picture ends no training, and hides no error of one
            log.warning("a curve is not stored: %s", error)

    def report(done: int, total: int, message: str) -> None:
        nonlocal looked_at
        if time.monotonic() - looked_at >= EVERY_SECONDS:
            looked_at = time.monotonic()
            store()
        context.progress(done, total, message)

    try:
        yield report
    finally:
        store()
