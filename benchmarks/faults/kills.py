"""Kills servers during their work: afterwards all acknowledged data must be present.

The work is pushes, uploads in parts, fits, cooks, trainings, purges and collections.

Each series has one server and its data folder. A client works until the kill, at a random moment. Then the server is
started again: all acknowledged data must be present, and its jobs must succeed. Data that was not acknowledged may be
missing, but not damaged: after a series every stored byte is hashed (`soup check --all`).
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from adaptersoup.client.client import SoupClient
from benchmarks.faults.content import WEIGHTS, adapter, passages
from benchmarks.faults.server import BASE, Killable, Stoppable, temporary_server
from registry.errors import Cancelled, Retired, SoupError
from registry.spec import CookRequest, PoolRequest, PosteriorSpec, SampleSource, UniformSpec
from registry.spec.passage import encode_lines
from training.request import TrainingRequest
from training.spec import TrainingSpec

STEPS = 150
"""Of a training: some seconds."""
UPLOAD, PART = 3_000_000, 100_000
"""Bytes of an upload, and of each of its parts."""
LEASE = "4"
"""Seconds after which another server takes over a dead one's job. One alone on its folder does so at once."""


class Series(ABC):
    """One kind of work."""

    name: ClassVar[str]
    span: ClassVar[float]
    """Seconds from the start of the work within which the kill comes."""
    settings: ClassVar[Mapping[str, str]] = {}
    """Of the server."""
    ready: ClassVar[int] = 0
    """How many adapters with samples the work needs."""

    stored: Path
    """The folder of the server's blobs."""
    over = threading.Event()
    """Set when the kill is about to come: from then on nothing is tried again."""

    @abstractmethod
    def work(self, client: SoupClient, number: int) -> Mapping[str, Any]:
        """Do one more piece of work; return the server's acknowledgement."""

    def settle(self, client: SoupClient, acknowledged: Mapping[str, Any]) -> None:  # noqa: B027
        """Wait before the next piece where each is long: all that was acknowledged has to end after the kill."""

    def resume(self, client: SoupClient) -> list[str]:  # noqa: ARG002
        """Continue the work that the kill interrupted; return its problems as sentences."""
        return []

    @abstractmethod
    def holds(self, client: SoupClient, acknowledged: Mapping[str, Any]) -> bool:
        """Return True if the server has everything that it acknowledged."""


class Pushes(Series):
    """Adapters with their samples, downloaded again after the kill."""

    name = "push"
    span = 1.5

    def work(self, client: SoupClient, number: int) -> Mapping[str, Any]:  # noqa: D102
        return client.push(adapter(f"kept/a{number}", 100 + number, sample=number % 2 == 0))

    def holds(self, client: SoupClient, acknowledged: Mapping[str, Any]) -> bool:  # noqa: D102
        record = client.adapter(str(acknowledged["ref"]))
        with tempfile.TemporaryDirectory() as folder:
            ref = acknowledged["digest"]
            client.download(ref, WEIGHTS, Path(folder) / WEIGHTS, digest=acknowledged["weights_blob"])
        job = acknowledged["job"]
        return record["digest"] == acknowledged["digest"] and (job is None or _succeeded(client, job))


class Uploads(Series):
    """Files sent in parts; an upload that a kill interrupts continues at the acknowledged offset."""

    name = "resumed_push"
    span = 1.5

    def __init__(self) -> None:
        self._sending: tuple[bytes, int] | None = None

    def work(self, client: SoupClient, number: int) -> Mapping[str, Any]:  # noqa: D102
        data = random.Random(number).randbytes(UPLOAD)
        self._sending = data, 0
        digest = client.upload(data, part_bytes=PART, progress=lambda done, _total, _name: self._reached(done))
        self._sending = None
        return {"digest": digest}

    def _reached(self, done: int) -> None:
        if self.over.is_set():
            raise Cancelled("The server was killed.")
        if self._sending is not None:
            self._sending = self._sending[0], done

    def resume(self, client: SoupClient) -> list[str]:  # noqa: D102
        if self._sending is None:
            return []
        (data, done), self._sending = self._sending, None
        first: list[int] = []
        digest = client.upload(data, part_bytes=PART, progress=lambda sent, _total, _name: first.append(sent))
        lost = [] if first[0] >= done else [f"{done} bytes were acknowledged, and {first[0]} held"]
        return lost if self.holds(client, {"digest": digest}) else [*lost, f"{digest} is not what was sent"]

    def holds(self, client: SoupClient, acknowledged: Mapping[str, Any]) -> bool:  # noqa: D102
        return client.has_blob(str(acknowledged["digest"]))


class Purges(Series):
    """Adapters with samples, every second one purged: those must be gone, and the others present."""

    name = "purge"
    span = 1.5

    def work(self, client: SoupClient, number: int) -> Mapping[str, Any]:  # noqa: D102
        pushed = client.push(adapter(f"kept/a{number}", 100 + number, sample=True))
        if number % 2:
            client.purge(pushed["ref"])
        return {**pushed, "purged": bool(number % 2)}

    def holds(self, client: SoupClient, acknowledged: Mapping[str, Any]) -> bool:  # noqa: D102
        try:
            client.adapter(str(acknowledged["ref"]))
        except Retired:
            gone = (str(acknowledged["weights_blob"]), str(acknowledged["sample"]["digest"]))
            return bool(acknowledged["purged"]) and not any(map(client.has_blob, gone)) and not self._files(gone)
        return not acknowledged["purged"]

    def _files(self, digests: Iterable[str]) -> list[Path]:
        """The files that are left of blobs, in their place or set aside, whatever the database says."""
        return [path for digest in digests for path in self.stored.rglob(f"*{digest.removeprefix('sha256:')}*")]


class Collections(Pushes):
    """Unreferenced uploads, which are removed within seconds while pushed adapters stay."""

    name = "collection"
    span = 4.0
    settings: ClassVar[Mapping[str, str]] = {"SOUP_COLLECT_DAYS": str(1 / 86_400), "SOUP_COLLECT_SECONDS": "0.1"}

    def work(self, client: SoupClient, number: int) -> Mapping[str, Any]:  # noqa: D102
        for index in range(4):
            client.upload(b"%d %d" % (number, index))
        return super().work(client, number)


class Fits(Series):
    """A pool that grows by an adapter, and its selector."""

    name = "fit"
    span = 2.5
    ready = 3

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
    ready = 3

    def work(self, client: SoupClient, number: int) -> Mapping[str, Any]:  # noqa: D102
        sample = SampleSource(texts=passages(1000 + number))
        request = CookRequest(sample=sample, selector=UniformSpec(), pool=PoolRequest(tag="ready"), verify=False)
        return client.cook(request.model_copy(update={"name": f"soups/s{number}"}), wait=False)

    def holds(self, client: SoupClient, acknowledged: Mapping[str, Any]) -> bool:  # noqa: D102
        soup = client.result_of(dict(acknowledged)) if acknowledged["object"] == "job" else acknowledged
        return bool(client.adapter(str(soup["model"]))["digest"])


class Trainings(Series):
    """A training of some seconds, pushed at its end."""

    name = "training"
    span = 6.0

    def work(self, client: SoupClient, number: int) -> Mapping[str, Any]:  # noqa: D102
        spec = {"adapter": {"bottleneck": 4}, "init_seed": number, "recipe": {"steps": STEPS, "batch": 2, "block": 32}}
        request = TrainingRequest(
            name=f"trained/t{number}",
            domain="law",
            base_model=BASE,
            spec=TrainingSpec.model_validate(spec),
            texts=client.upload(encode_lines(passages(2000, 60))),
            valid=client.upload(encode_lines(passages(2001))),
        )
        return client.train(request, wait=False)

    def settle(self, client: SoupClient, acknowledged: Mapping[str, Any]) -> None:  # noqa: D102
        client.wait_job(str(acknowledged["id"]), patience=1)

    def holds(self, client: SoupClient, acknowledged: Mapping[str, Any]) -> bool:  # noqa: D102
        done = client.result_of(dict(acknowledged))
        return bool(client.adapter(str(done["adapter"]))["digest"] == done["digest"])


SERIES: tuple[type[Series], ...] = (Pushes, Uploads, Fits, Cooks, Trainings, Purges, Collections)


@dataclass
class Outcome:
    """The result of a series; `failures` are sentences about errors before a kill, and lost or damaged data.

    `survived` counts the kills without data loss; it is 0 if data is damaged at the end of the series.
    """

    series: str
    database: str
    kills: int = 0
    survived: int = 0
    acknowledged: int = 0
    failures: list[str] = field(default_factory=list)


def run_series(kind: type[Series], postgres: Stoppable | None, *, kills: int) -> Outcome:
    """Kill a server repeatedly during the work of a series."""
    outcome = Outcome(kind.name, "sqlite" if postgres is None else "postgresql")
    draw = random.Random(f"{kind.name}-{outcome.database}")
    series, numbers = kind(), count()
    everything: list[Mapping[str, Any]] = []
    with temporary_server(postgres, SOUP_JOB_LEASE_SECONDS=LEASE, **kind.settings) as server:
        series.stored = server.data / "blobs"
        with server.client() as client:
            for seed in range(series.ready):
                client.wait_job(client.push(adapter(f"ready/a{seed}", seed, sample=True, tags=("ready",)))["job"])
        for _ in range(kills):
            failed = len(outcome.failures)
            everything += _killed(series, server, draw.uniform(0, kind.span), numbers, outcome)
            outcome.kills += 1
            outcome.survived += len(outcome.failures) == failed
        failed = len(outcome.failures)
        with server.client() as client:
            outcome.failures += _missing(series, client, everything)
        outcome.acknowledged = len(everything)
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
    series.over = over

    def work() -> None:
        with server.client() as client:
            try:
                while not over.is_set():
                    acknowledged.append(series.work(client, next(numbers)))
                    series.settle(client, acknowledged[-1])
                    began.set()  # on a busy machine the first may take longer than the time until the kill
            except SoupError as error:
                if not over.is_set():
                    outcome.failures.append(f"before the kill: {error.message}")
            finally:
                began.set()

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        began.wait()
        time.sleep(after)
        over.set()
        server.kill()
        working.result()
    server.start()
    with server.client() as client:
        outcome.failures += _missing(series, client, acknowledged) + series.resume(client)
    return acknowledged


def _missing(series: Series, client: SoupClient, acknowledged: list[Mapping[str, Any]]) -> list[str]:
    failures = []
    for acknowledgement in acknowledged:
        try:
            if not series.holds(client, acknowledgement):
                failures.append(f"not as it was acknowledged: {acknowledgement}")
        except SoupError as error:
            failures.append(f"{error.message} (acknowledged: {acknowledgement})")
    return failures


def _succeeded(client: SoupClient, job: str) -> bool:
    return bool(client.wait_job(job)["state"] == "succeeded")
