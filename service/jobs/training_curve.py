"""Store the losses of a running training with its job, so that they can be seen even if it fails."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from registry.errors import Busy, Unavailable
from service.jobs.contract import JobContext
from training.losses_file import read_losses

log = logging.getLogger("soup.training")
EVERY_SECONDS = 5.0
"""Least seconds between two writes of the curve."""


class TrainingCurve:
    """Reports the progress of a training job, and stores the losses in `path` with the job as they grow."""

    def __init__(self, context: JobContext, path: Path) -> None:
        self._context = context
        self._path = path
        self._stored: dict[str, Any] | None = None
        self._checked_at = time.monotonic()

    def report(self, done: int, total: int, message: str) -> None:
        """Pass progress on to the job, and store new losses from time to time."""
        if time.monotonic() - self._checked_at >= EVERY_SECONDS:
            self._checked_at = time.monotonic()
            self.store()
        self._context.progress(done, total, message)

    def store(self) -> None:
        """Store the losses if they have changed; problems are only logged."""
        try:
            losses = read_losses(self._path)
            if losses is None or losses == self._stored:
                return
            with self._context.services.registry.database.write() as catalogue:
                catalogue.curves.put(self._context.row.id, losses)
            self._stored = losses
        except (Busy, Unavailable, OSError) as error:  # a missing curve must not end the training or hide its error
            log.warning("a curve is not stored: %s", error)
