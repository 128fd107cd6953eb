"""Choices for prompts in a pool of stored vectors, from a prompt's vector to the adapters with their shares."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from benchmarks.selection import gaussian_domain
from benchmarks.shelf.pools import BASE, ENCODER, Shelf
from registry.blobs import LocalBlobs
from registry.context import Caller, Registry
from registry.samples.sample import CheckedSample, Vectors
from registry.select.select import select_for_prompt
from registry.spec import PoolRequest, SampleReport


def milliseconds(shelf: Shelf, namespace: str, numbers: Iterable[int]) -> Iterator[float]:
    """The time of a choice among the adapters of a namespace, for text of each of these domains."""
    base: Any = SimpleNamespace(
        entry=SimpleNamespace(id="large"),
        shape=SimpleNamespace(fingerprint=BASE),
        encoders=lambda: {ENCODER: SimpleNamespace(name="base", digest=ENCODER)},
    )
    registry = Registry(shelf.database, LocalBlobs(shelf.blobs), {"large": base})
    for number in numbers:
        array = gaussian_domain(number, units=1, dimensions=shelf.dimensions).vectors[:]
        sample = CheckedSample(SampleReport(digest=BASE, received=1, kept=1), vectors=(Vectors(ENCODER, array, b""),))
        start = time.perf_counter()
        select_for_prompt(registry, Caller("key", (namespace,), ""), sample, pool=PoolRequest(base_model="large"))
        yield 1000 * (time.perf_counter() - start)
