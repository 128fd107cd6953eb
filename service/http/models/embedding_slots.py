"""Slots for requests that embed a sample while they wait, each of which blocks a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from registry.errors import Busy
from service.parts import Services


@contextmanager
def embedding_slot(services: Services) -> Iterator[None]:
    """Hold one of the slots for samples embedded at once; raises Busy if none is free."""
    if not services.selections.acquire(blocking=False):
        raise Busy("As many samples as this server embeds at once are being embedded; try again.", retry_after=2)
    try:
        yield
    finally:
        services.selections.release()
