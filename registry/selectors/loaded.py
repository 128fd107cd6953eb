"""An LRU cache of fitted selectors, by the digest of their stored state.

Part of `Registry`, used by the verb `select`. Selectors are immutable: threads share one, and its arrays are read-only.
The least recently used are evicted when all together exceed the bound; the last one stays, whatever its size.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from registry.selectors.contract import Selector

MAX_BYTES = 2**30
"""Ten cosine selectors over 10,000 adapters of 576 dimensions, or one over 100,000."""


class LoadedSelectors:
    """A thread-safe cache of about `max_bytes` of selectors."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, tuple[Selector[Any], int]] = OrderedDict()
        self._lock, self._loading = threading.Lock(), threading.Lock()

    def get(self, digest: str, load: Callable[[], tuple[Selector[Any], int]]) -> Selector[Any]:
        """The cached selector of this state, or the one that `load` returns with its size in bytes.

        Concurrent callers of one digest load it once. Raises what `load` raises.
        """
        cached = self._find(digest)
        if cached is not None:
            return cached
        with self._loading:
            cached = self._find(digest)
            if cached is None:
                cached, size = load()
                self._add(digest, cached, size)
            return cached

    def _find(self, digest: str) -> Selector[Any] | None:
        with self._lock:
            if digest not in self._entries:
                return None
            self._entries.move_to_end(digest)
            return self._entries[digest][0]

    def _add(self, digest: str, selector: Selector[Any], size: int) -> None:
        with self._lock:
            self._entries[digest] = selector, size
            while len(self._entries) > 1 and sum(size for _, size in self._entries.values()) > self._max_bytes:
                self._entries.popitem(last=False)
