"""How many connections a server has, and how many answers a key has under way: others always get one.

Used by Gate and by `connections`. A stream holds its connection for as long as its client reads: without this, one key
could hold all.
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
"""Files that the process opens beside connections: weights, blobs, logs, pipes of its children, and some rounds of
connections that are taken."""
FILES_PER_THREAD = 4
"""Those of a thread that serves a request: a database connection has three of SQLite, and a blob may be open."""
FEWEST = 16


def most_connections(settings: Settings) -> int:
    """As many as the settings say, and no more than leaves the process files to open; FEWEST at least."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return settings.max_connections
    left = files - FILES_KEPT - FILES_PER_THREAD * settings.database_pool
    return max(min(settings.max_connections, left), FEWEST)


class Places:
    """The answers under way on `most` connections, by key. From any thread.

    A key begins another where it has fewer than there are places free: alone it has half of all, of two that want many
    each has a third, and one that has none gets one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = Lock()
        self._held: Counter[str] = Counter()

    def taken(self, key_id: str) -> AbstractContextManager[None]:
        """Take a place for an answer, which it gives back at its end; raises Busy where the key has to end one."""
        with self._lock:
            own, free = self._held[key_id], self._most - self._held.total()
            if own and own >= free:
                raise Busy(
                    f"This key has {own} answers under way, and there is room for {max(free, 0)} more in all, which "
                    "others may need (SOUP_MAX_CONNECTIONS): wait for one of them to end.",
                    retry_after=RETRY_SECONDS,
                )
            self._held[key_id] += 1
        return self._held_by(key_id)

    @contextmanager
    def _held_by(self, key_id: str) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                self._held[key_id] -= 1
                if not self._held[key_id]:
                    del self._held[key_id]
