"""The nearest of many adapters to a text, by the means of a cosine selector whose state stays in its file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.report import seconds
from registry.names import sha256_digest
from registry.selectors.contract import Domain
from registry.selectors.cosine import CosineSelector
from registry.selectors.drawing import MIN_UNITS
from registry.selectors.state import dump_state, load_state
from registry.spec import CosineSpec

BEST = 10


@dataclass(frozen=True)
class Drawn:
    """Embeddings that are drawn on access; the same number gives the same vectors."""

    number: int
    dimensions: int

    @property
    def shape(self) -> tuple[int, int]:
        """(units, dimensions)."""
        return MIN_UNITS, self.dimensions

    def __getitem__(self, rows: slice, /) -> npt.NDArray[np.float32]:
        draw = np.random.default_rng(self.number)
        centre = draw.standard_normal(self.dimensions, dtype=np.float32)
        return (centre + draw.standard_normal(self.shape, dtype=np.float32))[rows]


@dataclass(frozen=True)
class Measurement:
    """The measurement: MiB of the state, seconds until it is read and has ranked once, then milliseconds per text."""

    state_mib: float
    first_s: float
    milliseconds: Sequence[float]


def stock(file: Path, adapters: int, *, dimensions: int) -> None:
    """Fit a selector over this number of adapters and write its state to a file."""
    domains = [
        Domain(f"team/a{n}@1", sha256_digest(str(n).encode()), f"a{n:07}", Drawn(n, dimensions))
        for n in range(adapters)
    ]
    file.write_bytes(dump_state(*CosineSelector(CosineSpec(encoder="base")).fit(domains).to_state()))


def searched(file: Path, *, dimensions: int, numbers: Sequence[int]) -> Measurement:
    """Look for text like that of these adapters; the first is where the state is read."""
    first, *rest = (Drawn(number, dimensions)[:1].copy() for number in numbers)

    def search(text: npt.NDArray[np.float32]) -> object:
        return selector.rank(text).ranked[:BEST]

    start = time.perf_counter()
    selector = CosineSelector.from_state(*load_state(file.read_bytes()))
    search(first)
    first_s = time.perf_counter() - start
    milliseconds = [1000 * seconds(partial(search, text)) for text in rest]
    return Measurement(file.stat().st_size / 2**20, first_s, milliseconds)
