"""Fitted selectors in memory, by the digest of their stored state, so that a selection need not read and check it anew.

Held by `Registry`, asked by the verb `select`. A state is immutable and so is what is made of it: threads share one
selector, and its arrays cannot be written to. Least recently asked for are dropped when the states together are larger
than the bound; one that is larger by itself is never kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from registry.selectors.contract import Selector

MOST = 256 * 2**20
"""Bytes in memory: ten of cosine's over 10,000 adapters of 576 dimensions, or one over 100,000."""
TURNS = 16


class LoadedSelectors:
    """At most `most` bytes of selectors; threads share it. What is mapped from their files is not among these bytes."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._held: OrderedDict[str, tuple[Selector[Any], int]] = OrderedDict()
        self._lock = threading.Lock()
        self._turns = tuple(threading.Lock() for _ in range(TURNS))

    @property
    def bytes(self) -> int:
        """Of all that are held."""
        with self._lock:
            return sum(size for _, size in self._held.values())

    def get(self, digest: str, load: Callable[[], tuple[Selector[Any], int]]) -> Selector[Any]:
        """The selector of this state, made by `load`, with its bytes in memory, where it is not held.

        Of several that ask for one at once, one loads it. What `load` raises is raised, and nothing is held.
        """
        with self._turns[int(digest[-2:], 16) % TURNS]:
            known = self.held(digest)
            if known is not None:
                return known
            selector, size = load()
            if size <= self._most:
                self._hold(digest, selector, size)
            return selector

    def held(self, digest: str) -> Selector[Any] | None:
        """The selector of this state, where it is in memory."""
        with self._lock:
            if digest not in self._held:
                return None
            self._held.move_to_end(digest)
            return self._held[digest][0]

    def _hold(self, digest: str, selector: Selector[Any], size: int) -> None:
        with self._lock:
            self._held[digest] = selector, size
            left = sum(one for _, one in self._held.values()) - self._most
            while left > 0:
                _, (_, gone) = self._held.popitem(last=False)
                left -= gone
