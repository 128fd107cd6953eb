"""Fits of domains whose vectors are read when they are looked at: the same to the last bit, in the memory of one."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from registry.selectors import SELECTORS
from registry.selectors.contract import Domain
from registry.selectors.state import dump_state
from registry.spec import CosineSpec, PosteriorSpec
from tests.registry.gaussian_domains import gaussian_domains

SPECS = [PosteriorSpec(dimensions=6), CosineSpec(encoder="base")]
MOST = 2
"""Samples in memory: the one that is looked at, and its like while Python still holds the one before."""


@dataclass
class Reader:
    """Hands out copies of vectors, and counts those that somebody holds."""

    held: int = 0
    most: int = 0
    reads: dict[str, int] = field(default_factory=dict)

    def domains(self, domains: Sequence[Domain]) -> list[Domain]:
        return [replace(one, vectors=Read(self, one.digest, one.vectors[:])) for one in domains]

    def read(self, digest: str, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        self.reads[digest] = self.reads.get(digest, 0) + 1
        copy = rows.copy()
        weakref.finalize(copy, self.gone)
        self.held += 1
        self.most = max(self.most, self.held)
        return copy

    def gone(self) -> None:
        self.held -= 1


@dataclass
class Read:
    """The vectors of a domain, as the contract has them."""

    reader: Reader
    digest: str
    rows: npt.NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape

    def __getitem__(self, rows: slice, /) -> npt.NDArray[np.float32]:
        return self.reader.read(self.digest, self.rows[rows])


def state(selector: Any) -> bytes:
    return dump_state(*selector.to_state())


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
@pytest.mark.parametrize("units", [40, 130])
@pytest.mark.parametrize("large", [False, True])
def test_a_fit_and_an_update_hold_the_vectors_of_one_domain(
    spec: Any, units: int, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr("registry.selectors.updating.LARGE", 3)
    in_memory = gaussian_domains(11, n=units)
    reader = Reader()
    read = reader.domains(in_memory)
    kind = SELECTORS[spec.kind]
    whole, streamed = kind(spec).fit(in_memory[:10]), kind(spec).fit(read[:10])
    assert state(streamed) == state(whole)
    assert reader.held == 0
    assert reader.most <= MOST
    assert max(reader.reads.values()) <= 4  # passes over the domains: of the origin, components, Gaussians, proof
    if large:
        out = next(one for one in read if one.digest not in streamed.held_out_)  # type: ignore[attr-defined]
        now, then = streamed.updated(read[10:11], [out]), whole.updated(in_memory[10:11], [out])
        assert state(now) == state(then)
        assert reader.most <= MOST
