"""One or two texts as the tokens of one sequence, rows of such sequences, and the states a base makes of them.

Called by the tasks. A row is the task's own numbers, then token ids, then -1 where it is shorter than the longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from registry.base_model import BaseText, LoadedBase
from registry.base_model.likelihood import hidden_states, without_bos
from registry.errors import InvalidParameter

PAD = -1
"""In rows; no token has this id."""
MAX_CELLS = 2**27
"""Numbers of all rows, 1 GiB: they are as long as the longest, so that one long text makes many short ones large."""


@dataclass(frozen=True)
class Frame:
    """The tokens around texts: `before` the first, `between` the two, `after` the last."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def taken(self) -> int:
        """How many positions they take."""
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, first: Sequence[int], second: Sequence[int] = ()) -> tuple[list[int], int]:
        """All token ids, and where among them the second text begins. A BOS (CLS) of the text's own is not doubled."""
        first = without_bos(first, self.before[-1] if self.before else None)
        start = [*self.before, *first, *self.between]
        return [*start, *second, *self.after], len(start)


def frame(base: BaseText, *, pair: bool) -> Frame:
    """What stands around texts for `base`.

    An encoder's tokenizer says it (BERT: CLS a SEP b SEP); one that says nothing gets the same of its own CLS and
    SEP. For a causal model it is BOS, and a line break after each text.
    """
    if base.shape.kind == "causal":
        line = tuple(base.tokenize("\n", bos=False))
        bos = (base.bos_id,) if base.entry.bos and base.bos_id is not None else ()
        return Frame(bos, line if pair else (), line)
    probe = base.tokenizer.backend_tokenizer.encode("a", "a" if pair else None, add_special_tokens=True)
    if all(place is not None for place in probe.sequence_ids):
        cls, sep = ((one,) if one is not None else () for one in (base.bos_id, base.eos_id))
        return Frame(cls, sep if pair else (), sep)
    parts: list[list[int]] = [[], [], [], [], []]
    at = 0
    for token, place in zip(probe.ids, probe.sequence_ids, strict=True):
        if place is not None:
            at = 2 * place + 1
        elif at in (1, 3):
            at += 1
        parts[at].append(token)
    return Frame(tuple(parts[0]), tuple(parts[2]) if pair else (), tuple(parts[4] if pair else parts[2]))


class Tokens(NamedTuple):
    """Token ids of a text, and which of its characters each stands for."""

    ids: list[int]
    offsets: list[tuple[int, int]]


def tokens_of(base: BaseText, text: str) -> Tokens:
    """The text's tokens without any around it; raises InvalidParameter for text that is not valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise InvalidParameter(f"A text is not valid Unicode at character {problem.start}.", param="texts") from None
    found = base.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    return Tokens(list(found.ids), list(found.offsets))


def rows_of(found: Sequence[tuple[Sequence[int], Sequence[int]]]) -> np.ndarray:
    """int64 (rows, width) of (the task's numbers, token ids); raises InvalidParameter for more than `MAX_CELLS`."""
    width = max(len(lead) + len(ids) for lead, ids in found)
    if len(found) * width > MAX_CELLS:
        raise InvalidParameter(
            f"{len(found)} examples of up to {width} tokens are more than is held at a time ({MAX_CELLS} tokens, each "
            "example counted as the longest): bring fewer, or a smaller block.",
            param="texts",
        )
    rows = np.full((len(found), width), PAD, dtype=np.int64)
    for row, (lead, ids) in zip(rows, found, strict=True):
        row[: len(lead) + len(ids)] = [*lead, *ids]
    return rows


class Batch(NamedTuple):
    """Rows on the base's device: the task's numbers (batch, leads), ids and mask (batch, longest)."""

    leads: Tensor
    ids: Tensor
    mask: Tensor


def batch_of(base: LoadedBase, rows: Tensor, *, leads: int) -> Batch:
    """Rows (batch, width) taken apart; no column is all padding."""
    rows = rows.to(base.model.device)
    ids = rows[:, leads:]
    mask = ids != PAD
    longest = int(mask.sum(dim=1).max())
    return Batch(rows[:, :leads], ids[:, :longest].clamp(min=0), mask[:, :longest].long())


def states(base: LoadedBase, batch: Batch, *, second_at: Tensor | None = None) -> Tensor:
    """Last hidden states (batch, longest, hidden); `second_at` (batch,) is where a second text begins.

    An encoder with several token types, like BERT, is told which of the two a token is of.
    """
    types = None
    if second_at is not None and base.shape.kind == "encoder" and getattr(base.model.config, "type_vocab_size", 1) > 1:
        places = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        types = (places >= second_at[:, None]).long() * batch.mask
    return hidden_states(base.model, batch.ids, batch.mask, token_types=types)


def slices(count: int, size: int) -> Iterator[slice]:
    """`size` at a time of `count`."""
    return (slice(start, start + size) for start in range(0, count, size))
