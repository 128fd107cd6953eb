"""An LRU cache of fitted selectors, by the digest of their stored state.

Part of `Registry`, used by the verb `select`. Selectors are immutable: threads share one, and its arrays are read-only.
The least recently used are evicted when all together exceed the bound; a selector that alone exceeds it is not cached.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from registry.selectors.contract import Selector

MAX_BYTES = 256 * 2**20
"""Ten cosine selectors over 10,000 adapters of 576 dimensions, or one over 100,000."""
LOCKS = 16


class LoadedSelectors:
    """A thread-safe cache of at most `max_bytes` of selectors, not counting arrays that are mapped from files."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, tuple[Selector[Any], int]] = OrderedDict()
        self._lock = threading.Lock()
        self._load_locks = tuple(threading.Lock() for _ in range(LOCKS))

    @property
    def bytes(self) -> int:
        """The size of all cached selectors."""
        with self._lock:
            return sum(size for _, size in self._entries.values())

    def get(self, digest: str, load: Callable[[], tuple[Selector[Any], int]]) -> Selector[Any]:
        """The cached selector of this state, or the one that `load` returns with its size in bytes.

        Concurrent callers of one digest load it once. Raises what `load` raises.
        """
        with self._load_locks[int(digest[-2:], 16) % LOCKS]:
            cached = self.find(digest)
            if cached is not None:
                return cached
            selector, size = load()
            if size <= self._max_bytes:
                with self._lock:
                    self._entries[digest] = selector, size
                    self._evict()
            return selector

    def find(self, digest: str) -> Selector[Any] | None:
        """The cached selector of this state, or None."""
        with self._lock:
            if digest not in self._entries:
                return None
            self._entries.move_to_end(digest)
            return self._entries[digest][0]

    def _evict(self) -> None:
        excess = sum(size for _, size in self._entries.values()) - self._max_bytes
        while excess > 0:
            _, (_, size) = self._entries.popitem(last=False)
            excess -= size
