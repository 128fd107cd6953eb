"""How long a server takes for its pages over a catalogue of ten thousand adapters."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

import httpx2

from benchmarks.faults.server import Killable
from benchmarks.shelf.lists import PAGE, WARM, Timed
from benchmarks.shelf.rows import NAMESPACES, vocabulary
from registry.errors import Internal


def timed(server: Killable, amount: int, *, requests: int) -> Iterator[Timed]:
    """Every page that lists or shows adapters, and those of what is counted, for a key that sees everything."""
    draw, words = random.Random(5), vocabulary()

    def some() -> str:
        number = draw.randrange(amount)
        return f"team{number % NAMESPACES}/a{number}"

    asked: dict[str, Callable[[], str]] = {
        "models": lambda: f"/models?limit={PAGE}",
        "models searched": lambda: f"/models?limit={PAGE}&q={draw.choice(words)}",
        "one model": lambda: f"/models/{some()}",
        "compare": lambda: f"/compare?model={some()}&model={some()}",
        "playground": lambda: "/playground",
        "jobs": lambda: "/jobs",
        "usage": lambda: "/usage?by=model",
        "audit": lambda: "/audit",
        "keys": lambda: "/keys",
        "engine": lambda: "/engine",
    }
    headers = {"authorization": f"Bearer {server.key()}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=120) as client:
        for kind, path in asked.items():
            yield _timed(kind, client, [path() for _ in range(WARM + requests)])


def _timed(kind: str, client: httpx2.Client, paths: Sequence[str]) -> Timed:
    taken = []
    for path in paths:
        began = time.perf_counter()
        answer = client.get(path)
        taken.append(1000 * (time.perf_counter() - began))
        if answer.status_code != 200 or "<h1" not in answer.text:
            raise Internal(f"{path} was answered with {answer.status_code}: {answer.text[:500]}")
    return Timed(kind, "everything", taken[WARM:], len(paths) - WARM)
