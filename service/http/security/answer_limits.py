"""Limits of connections: how many a server has, and how many answers one key may have under way.

Used by Gate and by `connections`. A stream holds its connection for as long as its client reads: without a limit one
key could hold all of them.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock

from registry.errors import Busy
from service.settings import Settings

RETRY_SECONDS = 1
FILES_KEPT = 128
"""Files that the process opens beside connections: weights, blobs, logs, pipes to its children, and connections that
are accepted and closed again."""
FILES_PER_THREAD = 4
"""Files of a thread that serves a request: a database connection has three of SQLite, and a blob may be open."""
FEWEST = 16


def most_connections(settings: Settings) -> int:
    """Return the setting, or what the process's limit of open files allows (at least FEWEST) if that is less."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return settings.max_connections
    available = files - FILES_KEPT - FILES_PER_THREAD * settings.database_pool
    return min(settings.max_connections, max(available, FEWEST))


class AnswerLimits:
    """Limits how many answers each key has under way on `most` connections. Thread-safe.

    A key gets another answer while it has fewer than are free. So a single busy key gets half of all, and two get a
    third each; a key without any gets one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._by_key: Counter[str] = Counter()

    def acquire(self, key_id: str) -> AbstractContextManager[None]:
        """Count an answer of a key until the returned context ends; raises Busy if the key has its share already."""
        with self._lock:
            of_key, free = self._by_key[key_id], self._most - self._by_key.total()
            if of_key and of_key >= free:
                raise Busy(
                    f"This key has {of_key} running answers, and the server has room for only {max(free, 0)} more, of "
                    "all keys (SOUP_MAX_CONNECTIONS): wait until one ends.",
                    retry_after=RETRY_SECONDS,
                )
            self._by_key[key_id] += 1
        return self._release_after(key_id)

    @contextmanager
    def _release_after(self, key_id: str) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._by_key[key_id] -= 1
                if not self._by_key[key_id]:
                    del self._by_key[key_id]
