"""An encoder that remembers its last answers: one sample is often asked about several times in a row.

Built for the base models of a server, which share one memory; `soup compare` cooks eight times for one sample. Vectors
are kept, texts are not: the key is a digest.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from registry.encoders.contract import Embedded, Encoder
from registry.names import digest_of
from registry.progress import Progress
from registry.spec import EncoderName, Unit


class Memory:
    """The last `size` answers, whichever encoder gave them; safe to share between threads."""

    def __init__(self, size: int = 16) -> None:
        self._size = size
        self._kept: OrderedDict[str, Embedded] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> Embedded | None:
        """An answer that is still known; it becomes the most recent one."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: str, value: Embedded) -> None:
        """Remember an answer, and forget the least recent beyond the size."""
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)


class RememberedEncoder:
    """The Encoder `inner`, asked once for each list of texts that `memory` still holds."""

    def __init__(self, inner: Encoder, memory: Memory) -> None:
        self._inner = inner
        self._memory = memory
        self.name: EncoderName = inner.name
        self.unit: Unit = inner.unit
        self.digest = inner.digest  # remembering changes no vector
        self.dimensions = inner.dimensions

    def encode(
        self, texts: Sequence[str], *, seed: int = 0, max_units: int | None = None, scored: bool = True,
        progress: Progress | None = None,
    ) -> Embedded:  # fmt: skip
        """Vectors of `texts`, remembered or new; raises what the inner encoder raises, and remembers no error."""
        key = digest_of([self.digest, seed, max_units, scored, list(texts)])
        known = self._memory.get(key)
        if known is None:
            known = self._inner.encode(texts, seed=seed, max_units=max_units, scored=scored, progress=progress)
            self._memory.put(key, known)
        return known
