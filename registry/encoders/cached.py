"""An encoder that caches its last results: one sample is often embedded several times in a row.

Built for the base models of a server, which share one cache; `soup compare` cooks eight times for one sample. Vectors
are cached, texts are not: the key is a digest.
"""

from __future__ import annotations

from collections.abc import Sequence

from registry.encoders.contract import Embedded, Encoder
from registry.names import digest_of
from registry.progress import Progress
from registry.recent import Recent
from registry.spec import EncoderName, Unit


class CachedEncoder:
    """The Encoder `inner`, run only for lists of texts whose vectors are not in `cache`.

    Encoders that share a cache need different values of `scope` if they have one digest and yet different losses.
    """

    def __init__(self, inner: Encoder, cache: Recent[Embedded], *, scope: str = "") -> None:
        self._inner = inner
        self._cache = cache
        self._scope = scope
        self.name: EncoderName = inner.name
        self.unit: Unit = inner.unit
        self.digest = inner.digest  # caching changes no vector
        self.dimensions = inner.dimensions

    def encode(
        self,
        texts: Sequence[str],
        *,
        seed: int = 0,
        max_units: int | None = None,
        scored: bool = True,
        progress: Progress | None = None,
    ) -> Embedded:
        """Vectors of `texts`, cached or new; raises what the inner encoder raises, and caches no error."""
        key = digest_of([self.digest, self._scope, seed, max_units, scored, list(texts)])
        result = self._cache.get(key)
        if result is None:
            result = self._inner.encode(texts, seed=seed, max_units=max_units, scored=scored, progress=progress)
            self._cache.put(key, result)
        return result
