"""Pushes: by several clients at once, and enough in a row that their pool has to be fitted again."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptersoup.client.client import SoupClient
from benchmarks.faults.content import adapter
from benchmarks.faults.server import Killable
from registry.samples.embeddings_file import save_embeddings
from registry.spec import CosineSpec, EmbeddingSource, FileSource, Manifest, SampleSource

UNITS = 30
"""Vectors of each sample, which needs no embedding: what is measured are pushes and fits."""
SEEDED = 4
"""Adapters that the pool is first fitted over."""


def rate(server: Killable, *, clients: int, each: int, seed: int) -> float:
    """Pushes per second by parallel clients, each with its own adapters, without samples."""
    by_client = [
        [
            adapter(f"rate{clients}/c{number}-{place}", seed + number * each + place, sample=False)
            for place in range(each)
        ]
        for number in range(clients)
    ]

    def push(manifests: Sequence[Manifest]) -> None:
        with server.client() as client:
            for manifest in manifests:
                client.push(manifest)

    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(push, by_client))
    return clients * each / (time.perf_counter() - began)


@dataclass(frozen=True)
class Backlog:
    """Fits that are to do after pushes in a row, those done meanwhile, and how long the pushes took."""

    pushes: int
    to_do: int
    done: int
    seconds: float


def backlog(server: Killable, *, pushes: int) -> Backlog:
    """Push into a pool that has a selector, one adapter after the other, and count its fits."""
    with server.client() as client:
        encoder = next(
            candidate
            for model in client.models()
            for candidate in model["encoders"] or ()
            if candidate["name"] == "base"
        )
        for number in range(SEEDED):
            client.push(_embedded(number, encoder))
        client.fit(CosineSpec(encoder="base"))
        manifests = [_embedded(number, encoder) for number in range(SEEDED, SEEDED + pushes)]
        done_before = _fits(client, "succeeded")
        began = time.perf_counter()
        for manifest in manifests:
            client.push(manifest)
        seconds = time.perf_counter() - began
        to_do = _fits(client, "queued") + _fits(client, "running")
        done = _fits(client, "succeeded") - done_before
    return Backlog(pushes, to_do, done, seconds)


def _fits(client: SoupClient, state: str) -> int:
    return sum(1 for _ in client.jobs(kind="fit", state=state))


def _embedded(number: int, encoder: dict[str, Any]) -> Manifest:
    """An adapter with the vectors of a sample."""
    vectors = np.random.default_rng(number).normal(size=(UNITS, encoder["dimensions"])).astype(np.float32)
    file = FileSource(base64=base64.b64encode(save_embeddings(vectors)).decode())
    source = EmbeddingSource(encoder=encoder["digest"], unit=encoder["unit"], file=file)
    return adapter(f"row/a{number}", 10_000 + number, sample=False).model_copy(
        update={"sample": SampleSource(embeddings=(source,))}
    )
