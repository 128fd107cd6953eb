"""What it costs to have blobs in an object store: pushes and first requests, beside the same over a folder.

Two servers, one with a folder and one with a bucket, do the same by turns. A cold load is the first request for an
adapter on a server that was just started with an empty cache, over the same request again. The store is moto on this
machine: its time is what passed between the first byte of a request to it and the last byte of the answer.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx2

from benchmarks.faults.server import BASE, postgresql_server
from benchmarks.fleet.asking import completion
from benchmarks.fleet.front import Meter, metered
from benchmarks.fleet.object_store import bucket_settings, s3_server
from benchmarks.replicas import Place, answered, free_port, place, the_base
from benchmarks.report import Result
from benchmarks.subjects import drawn_tensors
from demo.results import Figure
from registry.adapters.weights import save_tensors
from registry.base_model import LoadedBase
from registry.spec import BottleneckConfig

BOTTLENECK = 2048
"""Of the adapters, which take 4 MB each on the small base model."""
WEIGHTS = "adapter_model.safetensors"


@dataclass
class Way:
    """Where the blobs of a server are, and what took how long: seconds, and of them the store's."""

    name: str
    at: Place
    meter: Meter
    pushes: list[tuple[float, float]] = field(default_factory=list)
    loads: list[tuple[float, float]] = field(default_factory=list)

    def timed(self, call: Callable[[], object]) -> tuple[float, float]:
        """Seconds of a call, and of them those of the store."""
        began, before = time.perf_counter(), self.meter.seconds()
        call()
        return time.perf_counter() - began, self.meter.seconds() - before


def measure_stores(result: Result, *, adapters: int, bottleneck: int = BOTTLENECK) -> None:
    """Push adapters to both, start both again, and load each adapter."""
    base = the_base()
    with ways() as both:
        _push_all(both, base, adapters, bottleneck)
        _load_all(both, adapters)
    put_figures(result, both, adapters)


def put_figures(result: Result, both: tuple[Way, Way], adapters: int) -> None:
    """What the calls of both took, and the bucket's over the folder's."""
    for way in both:
        result.rows.append({
            "part": "stores", "blobs": way.name, "adapters": adapters, "push_ms": _ms(way.pushes, 0),
            "push_store_ms": _ms(way.pushes, 1), "load_ms": _ms(way.loads, 0), "load_store_ms": _ms(way.loads, 1),
        })  # fmt: skip
    folder, bucket = both
    for what in ("pushes", "loads"):
        here, there = getattr(folder, what), getattr(bucket, what)
        share = sum(store for _, store in there) / sum(seconds for seconds, _ in there)
        note = f"bucket over folder, medians of {adapters}; {share:.0%} of the bucket's time is the store's"
        ratio = median(seconds for seconds, _ in there) / median(seconds for seconds, _ in here)
        result.figures[f"store_vs_folder_{what}"] = Figure(ratio, "ratio", note=note)


def _ms(found: list[tuple[float, float]], which: int) -> float:
    return 1000 * median(one[which] for one in found)


@contextmanager
def ways() -> Iterator[tuple[Way, Way]]:
    """A place over a folder and one over a bucket, each with a database of its own."""
    with ExitStack() as stack:
        folder, port = Path(stack.enter_context(tempfile.TemporaryDirectory())), free_port()
        target = stack.enter_context(s3_server(folder))
        meter = stack.enter_context(metered(port, target))
        found = []
        for name, settings in (("folder", {}), ("bucket", bucket_settings(port))):
            (folder / name).mkdir()
            database = stack.enter_context(postgresql_server())
            at = stack.enter_context(place(folder / name, settings=settings, database=database))
            found.append(Way(name, at, meter))
        yield found[0], found[1]


def _push_all(both: tuple[Way, Way], base: LoadedBase, adapters: int, bottleneck: int) -> None:
    config = BottleneckConfig(structure="pfeiffer", bottleneck=bottleneck, activation="relu")
    with ExitStack() as stack:
        clients = [stack.enter_context(way.at.client(way.at.replica())) for way in both]
        for seed in range(-1, adapters):  # the first is not counted
            data = save_tensors(drawn_tensors(base, config, seed + 1))
            for way, client in zip(both, clients, strict=True):
                took = way.timed(lambda: _push(client, f"store/a{seed}", config, data))  # noqa: B023
                if seed >= 0:
                    way.pushes.append(took)
    for way in both:
        way.at.started[0].process.kill()
        way.at.started[0].process.communicate()


def _push(client: httpx2.Client, name: str, config: BottleneckConfig, data: bytes) -> None:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    answered(client.put(f"/v1/blobs/{digest}", content=data))
    body = {
        "name": name, "domain": "scale", "base_model": BASE, "config": config.model_dump(mode="json"),
        "files": {WEIGHTS: {"digest": digest}},
    }  # fmt: skip
    answered(client.post("/v1/adapters", json=body))


def _load_all(both: tuple[Way, Way], adapters: int) -> None:
    """On new servers, whose caches are empty."""
    with ExitStack() as stack:
        clients = [stack.enter_context(way.at.client(way.at.replica())) for way in both]
        for client in clients:
            answered(client.post("/v1/completions", json=completion(f"base/{BASE}", max_tokens=1)))
        for seed in range(adapters):
            body = completion(f"store/a{seed}", max_tokens=1)
            for way, client in zip(both, clients, strict=True):
                ask = lambda: answered(client.post("/v1/completions", json=body))  # noqa: B023, E731
                (cold, store), (warm, _) = way.timed(ask), way.timed(ask)
                way.loads.append((cold - warm, store))
