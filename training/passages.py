"""The passages of a sample as rows of tokens, for gradients over them: cut, drawn into steps, and their mean NLL.

Used by weighing and by tuning, whose samples are small: passages are rows of their own, not packed into blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from registry.base_model import LoadedBase
from registry.base_model.likelihood import Window, batches, scored_log_probs, windows
from registry.errors import InvalidSample
from registry.spec import Passage

CELLS = 4096
"""Tokens in one forward and backward pass, padding included."""

Rows = Sequence[Window]


def rows_of(base: LoadedBase, texts: Sequence[Passage], *, max_tokens: int) -> list[Window]:
    """The tokens of each text, with the base's BOS.

    Each is the first window of `max_tokens` or the context (`likelihood.windows`); a text without tokens is a window of
    none. Raises InvalidSample if no text has a token to predict.
    """
    most = min(max_tokens, base.shape.context)
    rows = [_row_of(base, text, most) for text in texts]
    if not tokens_of(rows):
        raise InvalidSample("The sample holds no token that the base model can predict.", param="sample")
    return rows


def _row_of(base: LoadedBase, text: Passage, most: int) -> Window:
    ids, prompt = base.tokenize_passage(text)
    bos_id = base.bos_id if base.entry.bos else None
    return next(iter(windows(ids, context=most, bos_id=bos_id, prompt=prompt)), Window(()))


def tokens_of(rows: Rows) -> int:
    """Count the tokens of the rows that are predicted."""
    return sum(row.scored for row in rows)


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
    for numbers in batches([len(row.ids) for row in rows], max_tokens=CELLS):
        before_forward()
        loss = -scored_log_probs(base.model, [rows[number] for number in numbers], pad_id=0).double().sum() / tokens
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total
