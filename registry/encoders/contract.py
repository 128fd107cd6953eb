"""The protocol of encoders, their results, and the choice of texts they read. Knows no SQL and no pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from registry.progress import Progress
from registry.spec import EncoderName, Unit


@dataclass(frozen=True)
class EmbeddedText:
    """The result of one forward pass of the base model over one passage.

    `vector` (d,) is the mean of the first window's last hidden states. `nll` in nats is summed over the `tokens` of all
    windows; it is None if the base is an encoder, or only vectors were requested. `truncated` is True if the passage is
    longer than the first window.
    """

    vector: npt.NDArray[np.float32]
    nll: float | None
    tokens: int
    truncated: bool


@dataclass(frozen=True)
class Embedded:
    """The units of a list of texts as vectors.

    `vectors` (n, d) float32; `source` (n,) is the index of the text each unit came from; `truncated` counts the
    units that were cut at the encoder's length limit. `nll` and `tokens` (n,) are None unless the same pass yields
    log-likelihoods.
    """

    vectors: npt.NDArray[np.float32]
    source: npt.NDArray[np.int64]
    unit: Unit
    truncated: int
    nll: npt.NDArray[np.float64] | None = None
    tokens: npt.NDArray[np.int64] | None = None


class Encoder(Protocol):
    """Texts to vectors. Two encoders of one digest give the same vectors and split texts into the same units."""

    @property
    def name(self) -> EncoderName:
        """The encoder's name in requests."""

    @property
    def digest(self) -> str:
        """Hash of everything its vectors depend on: pools hold embeddings of one encoder digest only."""

    @property
    def unit(self) -> Unit:
        """The unit of text of one vector."""

    @property
    def dimensions(self) -> int:
        """Length of a vector."""

    def encode(
        self,
        texts: Sequence[str],
        *,
        seed: int = 0,
        max_units: int | None = None,
        scored: bool = True,
        progress: Progress | None = None,
    ) -> Embedded:
        """Vectors of `texts`; beyond `max_units` units, that many are drawn with `seed`, in their order.

        Without `scored` no log-likelihoods are computed, and only text that decides the vectors is read. `progress` is
        called at short intervals, also where one chunk takes long. Raises InvalidSample where there is nothing to
        embed, and whatever `progress` raises.
        """


def draw(count: int, limit: int | None, *, seed: int) -> npt.NDArray[np.int64]:
    """Indices of at most `limit` of `count` units, ascending, drawn with `seed`."""
    if limit is None or count <= limit:
        return np.arange(count, dtype=np.int64)
    chosen = np.random.default_rng(seed).choice(count, size=limit, replace=False)
    return np.sort(chosen).astype(np.int64)


CHARACTERS = 16
"""Characters read at first for each token: several times the mean length of a token in any language."""


def beginning(text: str, count: Callable[[str], int], *, tokens: int) -> str:
    """The start of `text` with at least twice as many tokens, by `count`, as `tokens`; or all of it.

    An encoder reads a limited number of tokens, and a cut this far behind the last of them leaves them unchanged.
    """
    length = CHARACTERS * tokens
    while length < len(text) and count(text[:length]) < 2 * tokens:
        length *= 2
    return text[:length]
