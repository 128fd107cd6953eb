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
"""Tokens in one forward and backward pass, padding included."""

Row = Sequence[int]
Rows = Sequence[Row]


def rows_of(base: LoadedBase, texts: Sequence[str], *, max_tokens: int) -> list[list[int]]:
    """Tokenize texts with the base's BOS, cut at `max_tokens` or the context; a row without a predicted token is empty.

    Raises InvalidSample if no text has a token to predict.
    """
    most = min(max_tokens, base.shape.context)
    cut = [base.tokenize(text)[:most] for text in texts]
    rows = [row if len(row) > 1 else [] for row in cut]
    if not any(rows):
        raise InvalidSample("The sample holds no token that the base model can predict.", param="sample")
    return rows


def tokens_of(rows: Rows) -> int:
    """Count the tokens of the rows that are predicted (all but the first of each)."""
    return sum(max(0, len(row) - 1) for row in rows)


def split_rows(rows: Rows, count: int) -> list[Rows]:
    """Deal the rows into `count` groups in turn, or one group a row if there are fewer rows."""
    count = min(count, len(rows))
    return [rows[number::count] for number in range(count)]


def draw_batches(rows: Rows, *, batch: int, steps: int, draw: np.random.Generator) -> list[Rows]:
    """Draw the rows of each step: all rows in random order, then all again in another order."""
    size = min(batch, len(rows))
    order: list[int] = []
    while len(order) < size * steps:
        order += draw.permutation(len(rows)).tolist()
    return [[rows[number] for number in order[start : start + size]] for start in range(0, size * steps, size)]


def add_gradients(base: LoadedBase, rows: Rows, *, before_forward: Callable[[], None] = lambda: None) -> float:
    """Add the gradients of the rows' mean NLL per token to all tensors that require them; return the mean NLL.

    `before_forward` is called before each forward pass.
    """
    total, tokens = 0.0, tokens_of(rows)
    for numbers in batches([len(row) for row in rows], max_tokens=CELLS):
        before_forward()
        ids, mask = padded([rows[number] for number in numbers], pad_id=0, device=base.model.device)
        loss = -token_log_probs(base.model, ids, mask).double().sum() / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total
