"""Pools of stored vectors, and what fits over them take in the process that a server has for them.

Rows and blobs are those that pushes and embeddings make. The fits are `service.jobs.fit_process`'s, in a
process of their own that tells their time and how much memory they took beyond what it had: this module, as a program.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import migrations
from benchmarks.selection import gaussian_domain
from demo.results import ROOT
from registry.blobs import LocalBlobs
from registry.catalogue import Catalogue, Database
from registry.catalogue.rows import EmbeddingRow, NewAdapter
from registry.errors import Internal
from registry.names import sha256_digest
from registry.progress import silent
from registry.samples.embeddings_file import save_embeddings
from registry.spec import BlobPlace, BottleneckConfig, Card, PoolSpec, Provenance, SampleReport
from service.jobs.fit_process import begin

BASE, ENCODER = sha256_digest(b"large base"), sha256_digest(b"large encoder")
FEW, MANY = "few", "many"
"""Namespaces: of a pool that only brings the process up, and of the one that is measured."""
FEW_ADAPTERS = 20
PART = 500
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Fitted:
    """The cost of a fit: seconds, and the peak MiB beyond the memory of the process before it (`before`)."""

    selector: str
    seconds: float
    before: float
    beyond: float


@dataclass(frozen=True)
class Shelf:
    """Adapters of one base with samples that are embedded, in a database and a folder of blobs."""

    folder: Path
    database: Database
    units: int
    dimensions: int

    @property
    def url(self) -> str:
        """The database's."""
        return str(self.database.engine.url)

    @property
    def blobs(self) -> Path:
        """The folder of blobs."""
        return self.folder / "blobs"

    def fill(self, namespace: str, numbers: range) -> None:
        """Add these adapters: a row, a sample and its vectors each, which are the domains of the same numbers."""
        store = LocalBlobs(self.blobs)
        for first in range(numbers.start, numbers.stop, PART):
            chunk = range(first, min(numbers.stop, first + PART))
            stored = [(number, *self._vectors(store, number)) for number in chunk]
            with self.database.write() as catalogue:
                self._record(catalogue, namespace, stored)

    def _vectors(self, store: LocalBlobs, number: int) -> tuple[str, int]:
        data = save_embeddings(gaussian_domain(number, units=self.units, dimensions=self.dimensions).vectors[:])
        return store.put_bytes(data), len(data)

    def _record(self, catalogue: Catalogue, namespace: str, stored: Sequence[tuple[int, str, int]]) -> None:
        weights = sha256_digest(b"large weights")
        catalogue.blobs.record(weights, 40)
        for number, blob, size in stored:
            catalogue.blobs.record(blob, size)
            sample = SampleReport(digest=sha256_digest(f"sample {number}".encode()), received=20, kept=20)
            new = NewAdapter(
                namespace=namespace,
                name=f"a{number}",
                kind="adapter",
                digest=sha256_digest(str(number).encode()),
                base_model="large",
                base_fingerprint=BASE,
                domain=f"a{number:06}",
                card=Card(),
                provenance=Provenance(),
                config=BottleneckConfig(structure="pfeiffer", bottleneck=4, activation="relu"),
                weights_blob=weights,
                dtype="F32",
                parameters=10,
                size_bytes=40,
                sample=sample,
                sample_state="ready",
                recipe_digest=None,
                tuned_on=None,
                created_by="benchmark",
                learnt_from=(),
            )
            catalogue.adapters.add(new)
            catalogue.samples.add_embedding(
                EmbeddingRow(
                    sample_digest=sample.digest,
                    encoder_digest=ENCODER,
                    encoder_name="base",
                    unit="passage",
                    blob_digest=blob,
                    count=self.units,
                    dimensions=self.dimensions,
                    truncated=0,
                )
            )


@contextmanager
def shelf(folder: Path, *, units: int, dimensions: int) -> Iterator[Shelf]:
    """An empty one in a folder."""
    database = Database(f"sqlite:///{folder / 'soup.db'}")
    try:
        migrations.upgrade(database.engine)
        yield Shelf(folder, database, units, dimensions)
    finally:
        database.close()


@dataclass(frozen=True)
class Fits:
    """A process that fits over the pools of a shelf."""

    process: subprocess.Popen[str]
    asks: IO[str]
    answers: IO[str]

    def fit(self, namespace: str, spec: Any) -> Fitted:
        """Fit the pool of a namespace; raises Internal where the process ends instead."""
        pool = PoolSpec(base_fingerprint=BASE, namespaces=(namespace,))
        self._say({"pool": pool.model_dump(mode="json"), "spec": spec.model_dump(mode="json")})
        line = self.answers.readline()
        if not line:
            raise Internal(f"The process that fits {spec.kind} ended with {self.process.wait()}.")
        return Fitted(**json.loads(line))

    def _say(self, request: dict[str, Any]) -> None:
        self.asks.write(json.dumps(request) + "\n")
        self.asks.flush()


@contextmanager
def fits(of: Shelf) -> Iterator[Fits]:
    """The process, which has fitted a small pool: what a fit imports is in the memory that it has before."""
    command = [sys.executable, "-m", "benchmarks.shelf.pools", of.url, str(of.blobs)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Fits(process, process.stdin, process.stdout)
        finally:
            process.stdin.close()
            process.wait()


def _mib(name: str) -> float:
    """A figure of this process's memory."""
    match = re.search(rf"^{name}:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    if match is None:
        raise Internal(f"{STATUS} has no {name}: this benchmark needs Linux.")
    return int(match.group(1)) / 2**10


def main() -> None:
    """The process: a request on each line of its standard input, an answer on each of its standard output."""
    url, blobs = sys.argv[1:]
    handle = begin({"database": url, "blobs": BlobPlace(folder=Path(blobs)).model_dump(mode="json")})
    for line in sys.stdin:
        request = {**json.loads(line), "encoder_digest": ENCODER}
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        rss_before, began = _mib("VmRSS"), time.perf_counter()
        selector = handle(request, silent)["selector"]
        seconds = time.perf_counter() - began
        answer = {"selector": selector, "seconds": seconds, "before": rss_before, "beyond": _mib("VmHWM") - rss_before}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
