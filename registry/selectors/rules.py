"""Selection by losses instead of embeddings: pure functions of what adapters and the base cost on a text.

Losses are mean NLL per token (log perplexities), lower is better. Wherever losses are looked at, the base model is a
candidate: on one novel domain of the paper's table, 20 of 21 adapters are worse than nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from registry.errors import InvalidParameter

Losses = Sequence[float] | Sequence[Sequence[float]] | npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Choice:
    """The index of the chosen adapter, None for the base (which is to abstain), and its loss."""

    adapter: int | None
    loss: float

    @property
    def abstains(self) -> bool:
        """Whether doing nothing was the best."""
        return self.adapter is None


def best_single(losses: Losses) -> Choice:
    """The adapter with the least of `losses` (adapters,), ties to the earlier; it never abstains."""
    row = _checked(losses, 1)
    index = int(row.argmin())
    return Choice(adapter=index, loss=float(row[index]))


def best_with_base(losses: Losses, base: float, *, margin: float = 0.0) -> Choice:
    """The best of `losses` (adapters,) if it beats `base` by more than `margin`, else the base.

    `margin` is in nats, usually a number of paired standard errors. A tie is the base's: doing nothing costs nothing.
    """
    single = best_single(losses)
    if base - single.loss > margin:
        return single
    return Choice(adapter=None, loss=float(base))


def oracle_single(losses: Losses, base: Losses | None = None) -> list[Choice]:
    """The best adapter of every row of `losses` (domains, adapters), with `base` (domains,) as a candidate if given.

    With losses of the test text this is an upper reference, not a selector: it has seen the answer.
    """
    table = _checked(losses, 2)
    if base is None:
        return [best_single(row) for row in table]
    return [best_with_base(row, float(b)) for row, b in zip(table, _base(base, table), strict=True)]


def beating_base(losses: Losses, base: Losses) -> list[int]:
    """How many adapters beat the base, per row of `losses` (domains, adapters)."""
    table = _checked(losses, 2)
    return [int(count) for count in (table < _base(base, table)[:, None]).sum(axis=1)]


def _base(base: Losses, table: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    row = _checked(base, 1)
    if len(row) != len(table):
        raise InvalidParameter(f"{len(table)} domains have losses of adapters and {len(row)} of the base.")
    return row


def _checked(losses: Losses, dimensions: int) -> npt.NDArray[np.float64]:
    array = np.asarray(losses, dtype=np.float64)
    if array.ndim != dimensions or array.size == 0:
        raise InvalidParameter(f"Losses of shape {array.shape} are not a filled array of {dimensions} dimensions.")
    if np.isnan(array).any():
        raise InvalidParameter("Losses hold NaN.")
    return array
