"""An LRU cache of fitted selectors, by the digest of their stored state.

Part of `Registry`, used by the verb `select`. Selectors are immutable: threads share one, and its arrays are read-only.
The least recently used are evicted when all together exceed the bound; the last one stays, whatever its size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from registry.recent import Recent
from registry.selectors.contract import Selector

MAX_BYTES = 2**30
"""Ten cosine selectors over 10,000 adapters of 576 dimensions, or one over 100,000."""


class LoadedSelectors:
    """A thread-safe cache of about `max_bytes` of selectors."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._cached = Recent[Selector[Any]](max_bytes)
        self._loading = threading.Lock()

    def get(self, digest: str, load: Callable[[], tuple[Selector[Any], int]]) -> Selector[Any]:
        """The cached selector of this state, or the one that `load` returns with its size in bytes.

        Concurrent callers of one digest load it once. Raises what `load` raises.
        """
        selector = self._cached.get(digest)
        if selector is not None:
            return selector
        with self._loading:
            selector = self._cached.get(digest)
            if selector is None:
                selector, size = load()
                self._cached.put(digest, selector, size=size)
            return selector
