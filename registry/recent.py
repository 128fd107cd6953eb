"""A bounded cache of the values that were used last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """A thread-safe cache; beyond `limit` of their sizes in all, the least recently used values are dropped.

    The last value stays, whatever its size.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[str, tuple[Value, int]] = {}
        """Values and sizes, the least recently used first."""
        self._size = 0
        self._lock = threading.Lock()
        self._loading = threading.Lock()

    def get(self, key: str) -> Value | None:
        """The value of a key, which becomes the most recent one; None where there is none."""
        with self._lock:
            if key not in self._entries:
                return None
            value, _ = self._entries[key] = self._entries.pop(key)
            return value

    def put(self, key: str, value: Value, *, size: int = 1) -> None:
        """Cache a value of this size."""
        with self._lock:
            self._drop(key)
            self._entries[key] = value, size
            self._size += size
            while len(self._entries) > 1 and self._size > self._limit:
                self._drop(next(iter(self._entries)))

    def get_or_load(self, key: str, load: Callable[[], tuple[Value, int]]) -> Value:
        """The value of a key, or the one that `load` returns with its size; raises what `load` raises.

        One caller at a time loads: concurrent callers of one key load it once.
        """
        value = self.get(key)
        if value is not None:
            return value
        with self._loading:
            value = self.get(key)
            if value is None:
                value, size = load()
                self.put(key, value, size=size)
            return value

    def pop(self, key: str) -> Value | None:
        """Drop a key and return its value; None where there is none."""
        with self._lock:
            return self._drop(key)

    def _drop(self, key: str) -> Value | None:
        value, size = self._entries.pop(key, (None, 0))
        self._size -= size
        return value
