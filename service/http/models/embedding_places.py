"""Places for requests that have a sample embedded while they wait, in a thread each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from registry.errors import Busy
from service.parts import Services


@contextmanager
def embedding_place(services: Services) -> Iterator[None]:
    """A place among the samples that are embedded at once; raises Busy where there is none."""
    if not services.selections.acquire(blocking=False):
        raise Busy("As many samples as this server embeds at once are being embedded; try again.", retry_after=2)
    try:
        yield
    finally:
        services.selections.release()
