"""Encode one or two texts as one token sequence, sequences as rows, and compute a base's hidden states of rows.

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
"""Padding of rows; no token has this id."""
MAX_CELLS = 2**27
"""The most numbers in all rows (1 GiB); every row is as long as the longest."""


@dataclass(frozen=True)
class Frame:
    """The special tokens around texts: `prefix` before the first, `separator` between the two, `suffix` at the end."""

    prefix: tuple[int, ...]
    separator: tuple[int, ...]
    suffix: tuple[int, ...]

    @property
    def length(self) -> int:
        """Number of special tokens."""
        return len(self.prefix) + len(self.separator) + len(self.suffix)

    def wrap(self, first: Sequence[int], second: Sequence[int] = ()) -> tuple[list[int], int]:
        """Return all token ids and the index where the second text begins. A text's own BOS (CLS) is not doubled."""
        first = without_bos(first, self.prefix[-1] if self.prefix else None)
        start = [*self.prefix, *first, *self.separator]
        return [*start, *second, *self.suffix], len(start)


def frame(base: BaseText, *, pair: bool) -> Frame:
    """Return the special tokens that `base` has around texts.

    An encoder's tokenizer defines them (BERT: CLS a SEP b SEP); if it adds none, its own CLS and SEP are used likewise.
    A causal model gets BOS, and a line break after each text.
    """
    if base.shape.kind == "causal":
        line = tuple(base.tokenize("\n", bos=False))
        bos = (base.bos_id,) if base.entry.bos and base.bos_id is not None else ()
        return Frame(bos, line if pair else (), line)
    probe = base.tokenizer.backend_tokenizer.encode("a", "a" if pair else None, add_special_tokens=True)
    if all(text_number is not None for text_number in probe.sequence_ids):
        cls = () if base.bos_id is None else (base.bos_id,)
        sep = () if base.eos_id is None else (base.eos_id,)
        return Frame(cls, sep if pair else (), sep)
    # prefix, first text, separator, second text, suffix
    segments: list[list[int]] = [[], [], [], [], []]
    current = 0
    for token, text_number in zip(probe.ids, probe.sequence_ids, strict=True):
        if text_number is not None:
            current = 2 * text_number + 1
        elif current in (1, 3):
            current += 1
        segments[current].append(token)
    if pair:
        return Frame(tuple(segments[0]), tuple(segments[2]), tuple(segments[4]))
    return Frame(tuple(segments[0]), (), tuple(segments[2]))


class Tokens(NamedTuple):
    """Token ids of a text, and the range of characters that each stands for."""

    ids: list[int]
    offsets: list[tuple[int, int]]


def tokens_of(base: BaseText, text: str) -> Tokens:
    """Tokenize a text without special tokens; raises InvalidParameter for a token without an embedding."""
    encoding = base.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    base.check_embedded(encoding.ids)
    return Tokens(list(encoding.ids), list(encoding.offsets))


def rows_of(examples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> np.ndarray:
    """Pack (the task's numbers, token ids) into int64 (rows, width).

    Raises InvalidParameter for more than `MAX_CELLS` numbers.
    """
    width = max(len(lead) + len(ids) for lead, ids in examples)
    if len(examples) * width > MAX_CELLS:
        raise InvalidParameter(
            f"{len(examples)} examples of up to {width} tokens are more than is held at a time ({MAX_CELLS} "
            "tokens, each example counted as the longest): bring fewer, or a smaller block.",
            param="texts",
        )
    rows = np.full((len(examples), width), PAD, dtype=np.int64)
    for row, (lead, ids) in zip(rows, examples, strict=True):
        row[: len(lead) + len(ids)] = [*lead, *ids]
    return rows


class Batch(NamedTuple):
    """Rows on the base's device: the task's numbers (batch, leads), ids and mask (batch, longest)."""

    leads: Tensor
    ids: Tensor
    mask: Tensor


def batch_of(base: LoadedBase, rows: Tensor, *, leads: int) -> Batch:
    """Split rows (batch, width) into the task's numbers, ids and mask; no column is all padding."""
    rows = rows.to(base.model.device)
    ids = rows[:, leads:]
    mask = ids != PAD
    longest = int(mask.sum(dim=1).max())
    return Batch(rows[:, :leads], ids[:, :longest].clamp(min=0), mask[:, :longest].long())


def states(base: LoadedBase, batch: Batch, *, second_at: Tensor | None = None) -> Tensor:
    """Last hidden states (batch, longest, hidden); `second_at` (batch,) is where a second text begins.

    An encoder with several token types, like BERT, gets the token type of each text.
    """
    token_types = None
    if second_at is not None and base.shape.kind == "encoder" and getattr(base.model.config, "type_vocab_size", 1) > 1:
        positions = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        token_types = (positions >= second_at[:, None]).long() * batch.mask
    return hidden_states(base.model, batch.ids, batch.mask, token_types=token_types)


def slices(count: int, size: int) -> Iterator[slice]:
    """Slices of `size` that cover `count`."""
    return (slice(start, start + size) for start in range(0, count, size))
