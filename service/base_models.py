"""The base models of the allowlist as verbs, routes and jobs see them: shapes, tokenizers, encoders and scores.

Built by the runtime over the engine, which alone holds and runs their weights.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from registry.adapters.loadable import LoadableAdapter
from registry.base_model import BaseText
from registry.encoders import Encoder, MeanPoolEncoder, Memory, RememberedEncoder, SentenceBertEncoder
from registry.errors import Unavailable
from registry.progress import Progress
from registry.spec import BaseEntry, BaseShape, PassageScore
from service.engine import Engine
from service.engine.bases import AllowedBases

log = logging.getLogger("soup.base_models")


class ServedBaseModels:
    """`registry.BaseModels` over the engine of a server, within its memory budget in bytes, if it has one."""

    def __init__(self, allowed: AllowedBases, engine: Engine, *, memory_bytes: int | None = None) -> None:
        self._allowed = allowed
        self._engine = engine
        self._memory_bytes = memory_bytes
        self._vectors = Memory()
        self.sentence_bert = SentenceBertEncoder()

    @property
    def entries(self) -> Mapping[str, BaseEntry]:
        """The operator's allowlist by id."""
        return self._allowed.entries

    def shape(self, base_id: str) -> BaseShape:
        """The shape of a base model, read from its files without loading weights; raises NotFound or Unavailable."""
        return self._allowed.shape(base_id)

    def text(self, base_id: str) -> BaseText:
        """Tokenizer and shape of a base model, without its weights; raises NotFound or Unavailable."""
        return self._allowed.text(base_id)

    def size(self, base_id: str) -> int:
        """Bytes of a base model's weights in the dtype they are loaded in."""
        return self._allowed.size(base_id)

    def fits(self, base_id: str) -> bool:
        """Whether the memory budget holds a base model at all."""
        return self._memory_bytes is None or self.size(base_id) <= self._memory_bytes

    def encoders(self, base_id: str) -> Mapping[str, Encoder]:
        """The encoders of a base model by digest: its own hidden states, and sentence-BERT where it is installed."""
        shape = self.shape(base_id)
        own = MeanPoolEncoder(
            shape.fingerprint, shape.hidden_size, lambda texts: self._engine.embed(base_id, texts, patient=True)
        )
        found: dict[str, Encoder] = {own.digest: RememberedEncoder(own, self._vectors)}
        try:
            found[self.sentence_bert.digest] = RememberedEncoder(self.sentence_bert, self._vectors)
        except Unavailable as error:
            log.warning("sentence-BERT is left out: %s", error.message)
        return found

    def score(
        self, base_id: str, texts: Sequence[str], adapter: LoadableAdapter | None, *, progress: Progress
    ) -> Sequence[PassageScore]:
        """Log-likelihoods of texts, waiting for a place in the engine's queue; `progress` may raise to end it."""

        def advance(done: int, total: int) -> None:
            progress(done, total, "scoring the sample")

        return self._engine.score(base_id, texts, adapter, progress=advance, patient=True)
