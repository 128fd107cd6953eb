"""Which of a domain's vectors are learned from, and which prove what was learned.

100 units a domain are drawn with the seed (the paper's number); up to 100 of the rest are held out. Where the rest
is too small, the draw itself is split 80/20 for the proof, and the selector that is kept learns from all of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from registry.selectors.contract import Domain, Float64

UNITS = 100
HELD_OUT = 100
MIN_HELD_OUT = 10
MIN_UNITS = 5
"""Below this a domain cannot be split 80/20."""


@dataclass(frozen=True)
class Draw:
    """Vectors (n, d) in float64 per domain: `fitted` is for the selector kept, the others are for its proof.

    Without `cross_fit` `proof_fit` is `fitted`, and `proof_test` are other units.
    """

    fitted: list[Float64]
    proof_fit: list[Float64]
    proof_test: list[Float64]
    cross_fit: bool

    @property
    def proof(self) -> str:
        """How the held-out figures came about, for the report."""
        return "cross_fit_80_20" if self.cross_fit else "other_units"


def draw_units(domains: Sequence[Domain], *, seed: int) -> Draw:
    """Split every domain's vectors; a domain's draw depends on the seed and its digest, not on its neighbours."""
    shuffled = [_shuffled(domain, seed) for domain in domains]
    fitted = [vectors[:UNITS] for vectors in shuffled]
    rest = [vectors[UNITS : UNITS + HELD_OUT] for vectors in shuffled]
    if all(len(vectors) >= MIN_HELD_OUT for vectors in rest):
        return Draw(fitted=fitted, proof_fit=fitted, proof_test=rest, cross_fit=False)
    cuts = [len(vectors) * 4 // 5 for vectors in fitted]
    return Draw(
        fitted=fitted,
        proof_fit=[vectors[:cut] for vectors, cut in zip(fitted, cuts, strict=True)],
        proof_test=[vectors[cut:] for vectors, cut in zip(fitted, cuts, strict=True)],
        cross_fit=True,
    )


def labels(parts: Sequence[Float64]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The domain index of every row of `parts` laid end to end."""
    return np.repeat(np.arange(len(parts), dtype=np.int64), [len(part) for part in parts])


def _shuffled(domain: Domain, seed: int) -> Float64:
    own = int.from_bytes(hashlib.sha256(domain.digest.encode()).digest()[:8], "big")
    order = np.random.default_rng([seed, own]).permutation(len(domain.vectors))
    return np.ascontiguousarray(domain.vectors[order], dtype=np.float64)
