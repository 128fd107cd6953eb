"""The passages of a sample as rows of tokens, for gradients over them: cut, drawn into steps, and their mean NLL.

Used by weighing and by tuning, whose samples are small: passages are rows of their own, not packed into blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from registry.base_model import LoadedBase
from registry.base_model.likelihood import batches, padded, token_log_probs
from registry.errors import InvalidSample

CELLS = 4096
"""Tokens of a forward pass whose backward pass is kept at a time."""

Row = Sequence[int]
Rows = Sequence[Row]


def rows_of(base: LoadedBase, texts: Sequence[str], *, max_tokens: int) -> list[list[int]]:
    """The texts' tokens with the base's BOS, cut at `max_tokens` or the context; empty where none is predicted.

    Raises InvalidSample where that is so for all of them.
    """
    most = min(max_tokens, base.shape.context)
    cut = [base.tokenize(text)[:most] for text in texts]
    rows = [row if len(row) > 1 else [] for row in cut]
    if not any(rows):
        raise InvalidSample("The sample holds no token that the base model can predict.", param="sample")
    return rows


def tokens_of(rows: Rows) -> int:
    """How many tokens of the rows are predicted."""
    return sum(max(0, len(row) - 1) for row in rows)


def parted(rows: Rows, parts: int) -> list[Rows]:
    """The rows in so many parts, or each by itself where there are fewer."""
    count = min(parts, len(rows))
    return [rows[number::count] for number in range(count)]


def steps_of(rows: Rows, *, batch: int, steps: int, draw: np.random.Generator) -> list[Rows]:
    """The rows of each step: all in a drawn order, and again in another when they are used up."""
    size = min(batch, len(rows))
    order: list[int] = []
    while len(order) < size * steps:
        order += draw.permutation(len(rows)).tolist()
    return [[rows[at] for at in order[start : start + size]] for start in range(0, size * steps, size)]


def slope(base: LoadedBase, rows: Rows, *, before: Callable[[], None] = lambda: None) -> float:
    """Add the gradient of the mean NLL per token of these rows to whatever requires one; gives the mean.

    `before` is called before each forward pass.
    """
    total, tokens = 0.0, tokens_of(rows)
    for some in batches([len(row) for row in rows], max_tokens=CELLS):
        before()
        ids, mask = padded([rows[at] for at in some], pad_id=0, device=base.model.device)
        loss = -token_log_probs(base.model, ids, mask).double().sum() / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total
