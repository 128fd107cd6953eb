"""The base model as an encoder: one vector a passage, the mean of its last hidden states.

See docs/explanation/methods.md#embeddings. The model is run elsewhere (in the server, by the engine thread): this
module receives a callable and never imports torch. The mean is formed there: `_sum_states` in
`service/engine/runner.py` sums the states and `ScoreDraft.result` in `service/engine/draft.py` divides. A change of
this computation must increment `version` in the digest below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from registry.encoders.contract import Embedded, EmbeddedText, draw
from registry.errors import InvalidSample
from registry.names import digest_of
from registry.progress import Progress, silent
from registry.spec import EncoderName, Unit

CHUNK = 64
"""Passages embedded in one call: enough to bucket by length."""


class EmbedPassages(Protocol):
    """Runs the base model on passages: a vector each, and with `scored` the NLL and the count of all their tokens.

    `alive` is called at short intervals meanwhile, and may raise to end the call.
    """

    def __call__(self, texts: Sequence[str], /, *, scored: bool, alive: Callable[[], None]) -> Sequence[EmbeddedText]:
        """One result a passage, in their order."""


class BaseModelEncoder:
    """Mean-pooled last hidden states of the base model with `base_fingerprint`; units are passages."""

    name: EncoderName = "base"
    unit: Unit = "passage"

    def __init__(self, base_fingerprint: str, dimensions: int, embed: EmbedPassages) -> None:
        self.dimensions = dimensions
        self.digest = digest_of({"encoder": "mean_pool", "base": base_fingerprint, "version": 1})
        self._embed = embed

    def encode(
        self,
        texts: Sequence[str],
        *,
        seed: int = 0,
        max_units: int | None = None,
        scored: bool = True,
        progress: Progress | None = None,
    ) -> Embedded:
        """One vector a passage, of a causal base also NLL and token count; all passages unless `max_units` is set.

        Raises InvalidSample where there is no text, and whatever `progress` or the model raises.
        """
        if not texts:
            raise InvalidSample("There is no text to embed.", param="texts")
        source = draw(len(texts), max_units, seed=seed)
        rows: list[EmbeddedText] = []
        report = progress or silent
        for start in range(0, len(source), CHUNK):
            alive = partial(report, start, len(source), "embedding passages with the base model")
            alive()
            chunk = [texts[i] for i in source[start : start + CHUNK]]
            rows.extend(self._embed(chunk, scored=scored, alive=alive))
        report(len(source), len(source), "embedded with the base model")
        nll = [row.nll for row in rows if row.nll is not None]
        scored = len(nll) == len(rows)  # an encoder has none, nor a causal base without `scored`
        return Embedded(
            vectors=np.stack([row.vector for row in rows]).astype(np.float32),
            source=source,
            unit=self.unit,
            truncated=sum(row.truncated for row in rows),
            nll=np.array(nll, dtype=np.float64) if scored else None,
            tokens=np.array([row.tokens for row in rows], dtype=np.int64) if scored else None,
        )
