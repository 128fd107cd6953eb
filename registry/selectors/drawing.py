"""Which of a domain's vectors are learned from, and which prove what was learned.

100 units a domain are drawn with the seed (the paper's number); up to 100 of the rest are held out. Where the rest
is too small, the draw itself is split 80/20 for the proof, and the selector that is kept learns from all of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from registry.errors import InvalidParameter
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


def proof_name(cross_fit: bool) -> str:
    """How the held-out figures came about, for the report."""
    return "cross_fit_80_20" if cross_fit else "other_units"


def draw_units(domains: Sequence[Domain], *, seed: int) -> Draw:
    """Split every domain's vectors; a domain's draw depends on the seed and its digest, not on its neighbours."""
    cross_fit = any(has_few_units(domain) for domain in domains)
    drawn = [draw_domain(domain, seed=seed, cross_fit=cross_fit) for domain in domains]
    fitted = [one.fitted for one in drawn]
    return Draw(
        fitted=fitted,
        proof_fit=[one.proof_fit for one in drawn] if cross_fit else fitted,
        proof_test=[one.proof_test for one in drawn],
        cross_fit=cross_fit,
    )


@dataclass(frozen=True)
class DomainDraw:
    """One domain's part of a `Draw`."""

    fitted: Float64
    proof_fit: Float64
    proof_test: Float64


def has_few_units(domain: Domain) -> bool:
    """Whether too few units are left to be held out; one such domain has the whole pool proved by 80/20 splits."""
    return domain.units < UNITS + MIN_HELD_OUT


def draw_domain(domain: Domain, *, seed: int, cross_fit: bool) -> DomainDraw:
    """The units of one domain, whose embeddings are read here; raises InvalidParameter where they are not finite."""
    shuffled = _shuffled(domain, seed)
    fitted = shuffled[:UNITS]
    if not cross_fit:
        return DomainDraw(fitted, proof_fit=fitted, proof_test=shuffled[UNITS : UNITS + HELD_OUT])
    cut = len(fitted) * 4 // 5
    return DomainDraw(fitted, proof_fit=fitted[:cut], proof_test=fitted[cut:])


def labels(parts: Sequence[Float64]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The domain index of every row of `parts` laid end to end."""
    return np.repeat(np.arange(len(parts), dtype=np.int64), [len(part) for part in parts])


def _shuffled(domain: Domain, seed: int) -> Float64:
    own = int.from_bytes(hashlib.sha256(domain.digest.encode()).digest()[:8], "big")
    vectors = domain.vectors[:]
    if not np.isfinite(vectors).all():
        raise InvalidParameter(f"Embeddings of domain {domain.domain!r} hold NaN or infinity.", param="pool")
    order = np.random.default_rng([seed, own]).permutation(len(vectors))
    return np.ascontiguousarray(vectors[order], dtype=np.float64)
