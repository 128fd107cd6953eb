"""Domains made of Gaussians, for tests of selectors: same arguments, same vectors."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from registry.selectors.contract import Domain


def digest_for(label: str) -> str:
    return "sha256:" + hashlib.sha256(label.encode()).hexdigest()


def domain(label: str, vectors: npt.NDArray[np.floating]) -> Domain:
    return Domain(
        ref=f"team/{label}@1", digest=digest_for(label), domain=label, vectors=np.asarray(vectors, dtype=np.float32)
    )


def around(centre: npt.NDArray[np.floating], n: int, *, seed: int, spread: float = 1.0) -> npt.NDArray[np.float32]:
    noise = np.random.default_rng(seed).normal(size=(n, len(centre)))
    return (centre + spread * noise).astype(np.float32)


def centres(k: int, dimensions: int, *, apart: float = 8.0, seed: int = 7) -> npt.NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(k, dimensions)) * apart / np.sqrt(2)


def gaussian_domains(
    k: int = 4, *, n: int = 120, dimensions: int = 12, apart: float = 8.0, spread: float = 1.0
) -> list[Domain]:
    """`k` domains, labels d0, d1, ...; distinct centres about `apart` standard deviations a dimension away."""
    points = centres(k, dimensions, apart=apart)
    return [domain(f"d{i}", around(points[i], n, seed=100 + i, spread=spread)) for i in range(k)]
