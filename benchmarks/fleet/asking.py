"""Servers behind a router, and the short completions that they are asked for."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.replicas import FOLDER, Place, Process, place

REPLICAS, CLIENTS = 3, 8
WRITTEN = 4
"""Tokens of a canary's text."""


def completion(model: str, **more: Any) -> dict[str, Any]:
    """A short completion that any two adapters answer differently."""
    return {"model": model, "prompt": "The court held", "temperature": 0, "max_tokens": WRITTEN, "logprobs": 0, **more}


def said(answer: Mapping[str, Any]) -> tuple[str, float]:
    """The text of an answer, and how likely it was: many adapters write the same few tokens, none as likely."""
    choice = answer["choices"][0]
    return choice["text"], sum(choice["logprobs"]["token_logprobs"])


@contextmanager
def behind_router(
    replicas: int, source: Path = FOLDER, **settings: str
) -> Iterator[tuple[Place, list[Process], Process]]:
    """So many servers, and a router that knows all of them."""
    with tempfile.TemporaryDirectory() as folder, place(Path(folder), source, settings=settings) as at:
        servers = [at.replica() for _ in range(replicas)]
        router = at.router()
        yield at, servers, router
