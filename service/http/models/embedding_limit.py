"""Limits the requests that embed a sample while they wait, each of which blocks a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from registry.errors import Busy
from service.services import Services


@contextmanager
def limit_embeddings(services: Services) -> Iterator[None]:
    """Count as one of the samples embedded at once; raises Busy at the limit."""
    if not services.selections.acquire(blocking=False):
        raise Busy("The server is embedding the maximum number of samples: try again.", retry_after=2)
    try:
        yield
    finally:
        services.selections.release()
