"""The base models of the allowlist for verbs, routes and jobs: shape, tokenizer, encoders and scores.

Built by the runtime over the engine, which alone loads and runs their weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from registry.adapters.loadable import LoadableAdapter
from registry.base_model import BaseText
from registry.cores import ALL
from registry.encoders import BaseModelEncoder, CachedEncoder, Encoder, SentenceBertEncoder
from registry.encoders.contract import Embedded, EmbeddedText
from registry.errors import NotFound, Unavailable
from registry.progress import Progress
from registry.recent import Recent
from registry.spec import BaseEntry, BaseShape, Passage, PassageScore
from service.engine.bases import AllowedBases
from service.engine.text_calls import EngineCalls, has_bos
from service.settings import Settings

log = logging.getLogger("soup.base_models")
EMBEDDED = 16
"""Results of encoders that are cached: one sample is often embedded several times in a row."""


class ServedBaseModels(dict[str, "ServedBaseModel"]):
    """The base models of a server by id; indexing raises NotFound for unknown ids."""

    def __init__(self, allowed: AllowedBases, engine: EngineCalls, settings: Settings) -> None:
        super().__init__({base_id: ServedBaseModel(entry, self) for base_id, entry in allowed.entries.items()})
        self.allowed = allowed
        self.engine = engine
        self.memory_bytes = settings.memory_bytes
        self._cores = settings.threads or ALL
        self.vectors = Recent[Embedded](EMBEDDED)
        self.sentence_bert = SentenceBertEncoder(cores=self._spare_cores)

    def _spare_cores(self) -> int:
        """All cores while the engine has no requests, else one."""
        with suppress(Unavailable):
            return 1 if self.engine.counters()["requests"] else self._cores
        return self._cores

    def __missing__(self, base_id: str) -> ServedBaseModel:
        raise NotFound(f"There is no base model {base_id!r} here.", param="base_model")


class ServedBaseModel:
    """One base model of a server: `registry.context.BaseModel`, with its tokenizer and size."""

    def __init__(self, entry: BaseEntry, server: ServedBaseModels) -> None:
        self.entry = entry
        self._server = server

    @property
    def shape(self) -> BaseShape:
        """Shape (layers, hidden size, fingerprint), read from its files without loading weights."""
        return self._server.allowed.shape(self.entry.id)

    @property
    def text(self) -> BaseText:
        """Tokenizer and shape, without weights."""
        return self._server.allowed.text(self.entry.id)

    @property
    def size(self) -> int:
        """Bytes of its weights in the dtype they are loaded in."""
        return self._server.allowed.size(self.entry.id)

    @property
    def fits(self) -> bool:
        """True if its weights fit the memory budget."""
        return self._server.memory_bytes is None or self.size <= self._server.memory_bytes

    @property
    def bos(self) -> str | None:
        """The text of its BOS (CLS) token; None if its texts begin with none."""
        text = self.text
        return None if not has_bos(text) else str(text.tokenizer.backend_tokenizer.id_to_token(text.bos_id))

    def encoders(self) -> Mapping[str, Encoder]:
        """Encoders by digest: its hidden states, and sentence-BERT if that is installed."""
        server, shape = self._server, self.shape

        def run(texts: Sequence[str], *, scored: bool, alive: Callable[[], None]) -> Sequence[EmbeddedText]:
            return server.engine.embed(self.entry.id, texts, scored=scored, progress=lambda *_: alive(), patient=True)

        hidden_states = BaseModelEncoder(shape.fingerprint, shape.hidden_size, run)
        cached = CachedEncoder(hidden_states, server.vectors, scope=self.entry.id)  # losses depend on `bos` and dtype
        encoders: dict[str, Encoder] = {cached.digest: cached}
        try:
            encoders[server.sentence_bert.digest] = CachedEncoder(server.sentence_bert, server.vectors)
        except Unavailable as error:
            log.warning("sentence-BERT is left out: %s", error.message)
        return encoders

    def score(
        self, texts: Sequence[Passage], adapter: LoadableAdapter | None, *, progress: Progress
    ) -> Sequence[PassageScore]:
        """Score the log-likelihoods of texts, waiting if the engine's queue is full; `progress` may raise to end it."""

        def advance(done: int, total: int) -> None:
            progress(done, total, "scoring the sample")

        return self._server.engine.score(self.entry.id, texts, adapter, progress=advance, patient=True)
