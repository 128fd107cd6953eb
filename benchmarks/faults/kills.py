"""Servers killed in the middle of pushes, fits, cooks and trainings: what was acknowledged has to be there afterwards.

Each series has one server and its data folder. A client works until the kill comes, at a moment drawn anew each time;
the server is started again and must have all that was acknowledged, and its jobs must end well. What was not
acknowledged may be there or not, but whole: after a series every stored byte is hashed (`soup check --all`).
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.faults.content import WEIGHTS, adapter, passages
from benchmarks.faults.server import BASE, Killable, killable
from registry.errors import Internal, SoupError
from registry.files import encode_lines
from registry.spec import (
    CookRequest,
    PoolRequest,
    PosteriorSpec,
    SampleSource,
    UniformSpec,
)
from service.client.client import SoupClient
from training.request import TrainingRequest
from training.spec import TrainingSpec

STEPS = 150
"""Of a training: some seconds."""
LEASE = "4"
"""Seconds after which another server takes over a dead one's job. One alone on its folder does so at once."""


class Series(ABC):
    """One kind of work."""

    name: ClassVar[str]
    span: ClassVar[float]
    """Seconds from the start of the work within which the kill comes."""

    def prepare(self, client: SoupClient) -> None:
        """Put in what the work needs."""
        for seed in range(3):
            client.wait_job(client.push(adapter(f"ready/a{seed}", seed, sample=True, tags=("ready",)))["job"])

    @abstractmethod
    def work(self, client: SoupClient, number: int) -> Mapping[str, Any]:
        """One more piece of work: what the server acknowledged."""

    def settle(self, client: SoupClient, acknowledged: Mapping[str, Any]) -> None:  # noqa: B027
        """Wait before the next piece where each is long: all that was acknowledged has to end after the kill."""

    @abstractmethod
    def holds(self, client: SoupClient, acknowledged: Mapping[str, Any]) -> bool:
        """Whether the server has what it acknowledged."""


class Pushes(Series):
    """Adapters with their samples, downloaded again after the kill."""

    name = "push"
    span = 1.5

    def prepare(self, client: SoupClient) -> None:
        """Nothing is needed."""

    def work(self, client: SoupClient, number: int) -> Mapping[str, Any]:  # noqa: D102
        return client.push(adapter(f"kept/a{number}", 100 + number, sample=number % 2 == 0))

    def holds(self, client: SoupClient, acknowledged: Mapping[str, Any]) -> bool:  # noqa: D102
        found = client.adapter(str(acknowledged["ref"]))
        with tempfile.TemporaryDirectory() as folder:
            ref = acknowledged["digest"]
            client.download(ref, WEIGHTS, Path(folder) / WEIGHTS, digest=acknowledged["weights_blob"])
        job = acknowledged["job"]
        return found["digest"] == acknowledged["digest"] and (job is None or _succeeded(client, job))


class Fits(Series):
    """A pool that grows by an adapter, and its selector."""

    name = "fit"
    span = 2.5

    def work(self, client: SoupClient, number: int) -> Mapping[str, Any]:  # noqa: D102
        client.push(adapter(f"ready/more{number}", 100 + number, sample=True))
        return client.fit(PosteriorSpec(), wait=False)

    def holds(self, client: SoupClient, acknowledged: Mapping[str, Any]) -> bool:  # noqa: D102
        if acknowledged["object"] != "job":
            return bool(client.selector(str(acknowledged["id"])))
        return bool(client.selector(str(client.result_of(dict(acknowledged))["selector"])))


class Cooks(Series):
    """A soup for a sample of its own."""

    name = "cook"
    span = 1.0

    def work(self, client: SoupClient, number: int) -> Mapping[str, Any]:  # noqa: D102
        sample = SampleSource(texts=passages(1000 + number))
        asked = CookRequest(sample=sample, selector=UniformSpec(), pool=PoolRequest(tag="ready"), verify=False)
        return client.cook(asked.model_copy(update={"name": f"soups/s{number}"}), wait=False)

    def holds(self, client: SoupClient, acknowledged: Mapping[str, Any]) -> bool:  # noqa: D102
        soup = client.result_of(dict(acknowledged)) if acknowledged["object"] == "job" else acknowledged
        return bool(client.adapter(str(soup["model"]))["digest"])


class Trainings(Series):
    """A training of some seconds, pushed at its end."""

    name = "training"
    span = 6.0

    def prepare(self, client: SoupClient) -> None:
        """Nothing is needed."""

    def work(self, client: SoupClient, number: int) -> Mapping[str, Any]:  # noqa: D102
        spec = {"adapter": {"bottleneck": 4}, "init_seed": number, "recipe": {"steps": STEPS, "batch": 2, "block": 32}}
        asked = TrainingRequest(
            name=f"trained/t{number}", domain="law", base_model=BASE, spec=TrainingSpec.model_validate(spec),
            texts=client.upload(encode_lines(passages(2000, 60))), valid=client.upload(encode_lines(passages(2001))),
        )  # fmt: skip
        return client.train(asked, wait=False)

    def settle(self, client: SoupClient, acknowledged: Mapping[str, Any]) -> None:  # noqa: D102
        client.wait_job(str(acknowledged["id"]), patience=1)

    def holds(self, client: SoupClient, acknowledged: Mapping[str, Any]) -> bool:  # noqa: D102
        done = client.result_of(dict(acknowledged))
        return bool(client.adapter(str(done["adapter"]))["digest"] == done["digest"])


SERIES: tuple[type[Series], ...] = (Pushes, Fits, Cooks, Trainings)


@dataclass
class Outcome:
    """What came of a series; `failures` are sentences: errors before a kill, what was lost, what is not whole.

    `survived` counts the kills after which all was there; none where the series is not whole at its end.
    """

    series: str
    database: str
    kills: int = 0
    survived: int = 0
    acknowledged: int = 0
    failures: list[str] = field(default_factory=list)


def run_series(kind: type[Series], folder: Path, database_url: str | None, *, kills: int) -> Outcome:
    """Kill a server so many times during the work of a series."""
    outcome = Outcome(kind.name, "sqlite" if database_url is None else "postgresql")
    draw = random.Random(f"{kind.name}-{outcome.database}")
    series, numbers = kind(), count()
    everything: list[Mapping[str, Any]] = []
    with killable(folder, database_url, SOUP_JOB_LEASE_SECONDS=LEASE) as server:
        with server.client() as client:
            series.prepare(client)
        for _ in range(kills):
            failed = len(outcome.failures)
            everything += _killed(series, server, draw.uniform(0, kind.span), numbers, outcome)
            outcome.kills += 1
            outcome.survived += len(outcome.failures) == failed
        failed = len(outcome.failures)
        with server.client() as client:
            outcome.failures += _missing(series, client, everything)
        outcome.acknowledged = len(everything)
        if not everything:
            raise Internal(f"{kills} kills came before the server acknowledged any {kind.name}: nothing was tried")
        checked = server.soup("check", "--all", "--rate", str(10**9))
        if checked.returncode:
            outcome.failures.append(f"soup check: {checked.stdout.strip()} {checked.stderr.strip()}")
        if len(outcome.failures) > failed:
            outcome.survived = 0
    return outcome


def _killed(
    series: Series, server: Killable, after: float, numbers: count[int], outcome: Outcome
) -> list[Mapping[str, Any]]:
    """Work, kill, start again and look; what was acknowledged before the kill."""
    acknowledged: list[Mapping[str, Any]] = []
    began, over = threading.Event(), threading.Event()

    def work() -> None:
        with server.client() as client:
            began.set()
            try:
                while not over.is_set():
                    acknowledged.append(series.work(client, next(numbers)))
                    series.settle(client, acknowledged[-1])
            except SoupError as error:
                if not over.is_set():
                    outcome.failures.append(f"before the kill: {error.message}")

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        began.wait()
        time.sleep(after)
        over.set()
        server.kill()
        working.result()
    server.start()
    with server.client() as client:
        outcome.failures += _missing(series, client, acknowledged)
    return acknowledged


def _missing(series: Series, client: SoupClient, acknowledged: list[Mapping[str, Any]]) -> list[str]:
    found = []
    for one in acknowledged:
        try:
            if not series.holds(client, one):
                found.append(f"not as it was acknowledged: {one}")
        except SoupError as error:
            found.append(f"{error.message} (acknowledged: {one})")
    return found


def _succeeded(client: SoupClient, job: str) -> bool:
    return bool(client.wait_job(job)["state"] == "succeeded")
