"""An in-memory cache of what adapters score on passages, so that weighing a sample again computes nothing twice.

Used by `training.coefficients` and `training.by_losses` in the process that computes gradients, and lost with it. Texts
are stored as digests, and entries are never shared between owners: a quick answer would tell one owner that another
has the very same sample.

Floating-point sums depend in their last digits on what is computed in the same batch. An entry therefore holds exactly
what was computed together, so that an answer has the same bits whether or not it comes from the cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from registry.recent import Recent
from registry.spec import StoredAdapter
from training.passages import Rows

MAX_BYTES = 2**26
"""Default size of a cache; the least recently used entry goes first."""
ENTRY_BYTES = 300
"""Approximate size of an entry without its array."""


class ScoreCache(Recent[np.ndarray]):
    """An LRU cache of arrays, keyed by owner, adapters (none for the base model) and rows of tokens (`key_of`)."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(max_bytes)

    def add(self, key: str, values: np.ndarray) -> None:
        """Store an array under a key."""
        self.put(key, values, size=values.nbytes + ENTRY_BYTES)


def key_of(owner: str, quantity: str, adapters: Sequence[str], rows: Rows) -> str:
    """The key of a `quantity` of adapters, by their `name_of`, on rows of tokens that are computed together."""
    digest = hashlib.sha256(f"{len(adapters)}:{len(rows)}:".encode())
    for word in (owner, quantity, *adapters):
        digest.update(f"{len(word)}:{word}".encode())
    for row in rows:
        digest.update(f"{len(row.ids)}:{row.start}:".encode() + np.asarray(row.ids, dtype=np.int64).tobytes())
    return digest.hexdigest()


def name_of(adapter: StoredAdapter) -> str:
    """A digest of an adapter's configuration and weights."""
    return hashlib.sha256(adapter.model_dump_json().encode()).hexdigest()
