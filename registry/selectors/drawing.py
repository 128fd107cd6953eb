"""Splits each domain's vectors into those a selector is fitted on and those held out for its proof.

The proof measures the selector on held-out units. For each domain 100 units (the paper's number) are drawn with the
seed for the fit; up to 100 of the rest are held out. If the rest is too small, the draw itself is split 80/20 for
the proof, and the final selector is fitted on the whole draw.
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


def proof_name(cross_fit: bool) -> str:
    """The name of the proof's split, for the report."""
    return "cross_fit_80_20" if cross_fit else "other_units"


@dataclass(frozen=True)
class DomainDraw:
    """A split of one domain's vectors, arrays (n, d) in float64.

    The final selector is fitted on `fit`, and that of the proof on `proof_fit`. Both are the same, unless the pool is
    proved by 80/20 splits, which divide `fit` into `proof_fit` and `held_out`.
    """

    fit: Float64
    proof_fit: Float64
    held_out: Float64


def has_few_units(domain: Domain) -> bool:
    """Return True if too few units remain to be held out; then the whole pool is proved by 80/20 splits."""
    return domain.units < UNITS + MIN_HELD_OUT


def draw_domain(domain: Domain, *, seed: int, cross_fit: bool) -> DomainDraw:
    """Read and split the embeddings of a domain, by `cross_fit` 80/20; raises InvalidParameter for infinite values.

    The draw depends on the seed and the domain's digest, not on other domains.
    """
    shuffled = _shuffled(domain, seed)
    fit = shuffled[:UNITS]
    if not cross_fit:
        return DomainDraw(fit, proof_fit=fit, held_out=shuffled[UNITS : UNITS + HELD_OUT])
    cut = len(fit) * 4 // 5
    return DomainDraw(fit, proof_fit=fit[:cut], held_out=fit[cut:])


def domain_indices(domain_vectors: Sequence[Float64]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The domain index of every row of the concatenated `domain_vectors`."""
    return np.repeat(np.arange(len(domain_vectors), dtype=np.int64), list(map(len, domain_vectors)))


def _shuffled(domain: Domain, seed: int) -> Float64:
    domain_seed = int.from_bytes(hashlib.sha256(domain.digest.encode()).digest()[:8], "big")
    vectors = domain.vectors[:]
    if not np.isfinite(vectors).all():
        raise InvalidParameter(f"Embeddings of domain {domain.domain!r} hold NaN or infinity.", param="pool")
    order = np.random.default_rng([seed, domain_seed]).permutation(len(vectors))
    return np.ascontiguousarray(vectors[order], dtype=np.float64)
