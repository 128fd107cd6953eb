"""What adapters were found to do on passages, kept in memory so that weighing the same sample again need not ask anew.

Used by `training.coefficients` and `training.by_losses`, in the process that computes gradients: it ends with that. Of
text there is a digest, and what one owner had computed is never used for another, who would learn from a quick answer
that somebody else has the very same sample.

Sums of floating point differ in their last digits with what is computed beside them. So what is kept together is what
was computed together, and an answer has the same bits whatever was asked before.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from registry.spec import StoredAdapter
from training.passages import Rows

MOST_BYTES = 2**26
"""Of what is kept; what was not asked for the longest goes first."""
ENTRY_BYTES = 300
"""Of an entry beside its numbers, about."""


class Known:
    """Arrays by what they are of: an owner, adapters (none for the base model) and passages as rows of tokens."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._bytes = most_bytes, 0
        self._kept: OrderedDict[bytes, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> np.ndarray | None:
        """What is kept under a key."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def keep(self, key: bytes, values: np.ndarray) -> None:
        """Keep values under a key, at the price of older ones where there is no room."""
        with self._lock:
            self._drop(key)
            self._kept[key] = values
            self._bytes += values.nbytes + ENTRY_BYTES
            while self._bytes > self._most:
                self._drop(next(iter(self._kept)))

    def _drop(self, key: bytes) -> None:
        values = self._kept.pop(key, None)
        if values is not None:
            self._bytes -= values.nbytes + ENTRY_BYTES


def key_of(owner: str, what: str, adapters: Sequence[str], rows: Rows) -> bytes:
    """The key of `what` adapters, by their `name_of`, do together on rows of tokens that are computed together."""
    found = hashlib.sha256(f"{len(adapters)}:{len(rows)}:".encode())
    for part in (owner, what, *adapters):
        found.update(f"{len(part)}:{part}".encode())
    for row in rows:
        found.update(f"{len(row)}:".encode() + np.asarray(row, dtype=np.int64).tobytes())
    return found.digest()


def name_of(adapter: StoredAdapter) -> str:
    """A digest of all that an adapter is."""
    return hashlib.sha256(adapter.model_dump_json().encode()).hexdigest()
