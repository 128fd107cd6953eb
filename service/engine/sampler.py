"""From logits to a token: greedy or drawn, with a random stream of its own for each request.

The stream is counter-based (Philox): the number for token `position` of choice `index` depends on nothing but
(seed, index, position), so a request gets the same tokens whatever it is batched with. The draw walks the
vocabulary in its fixed order: rounding differences between batches move the cut points a little but never reorder
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from service.engine.request import SamplingParams, TopTokens

_MASK = (1 << 64) - 1
FIRST_SORTED = 256
"""Likeliest tokens that are looked at first for a nucleus; eight times as many where they do not reach it."""


@dataclass(frozen=True)
class Stream:
    """Random numbers in [0, 1) of one choice, addressed by position."""

    seed: int
    index: int

    def at(self, position: int) -> float:
        """The number for token `position`: always the same one."""
        key = np.array([self.seed & _MASK, self.index], dtype=np.uint64)
        bits = np.random.Philox(key=key, counter=position)
        return float(np.random.Generator(bits).random())


def log_probs(logits: Tensor) -> Tensor:
    """fp32 log-probabilities of logits (..., vocabulary)."""
    logits = logits.float()
    return logits - torch.logsumexp(logits, dim=-1, keepdim=True)


def choose(logits: Tensor, params: SamplingParams, stream: Stream, position: int) -> int:
    """The next token for logits (vocabulary,): the most likely at temperature 0, else one drawn from the nucleus."""
    if params.temperature == 0:
        return int(logits.argmax())
    scaled = logits.double()
    scaled = (scaled - scaled.max()) / params.temperature
    probabilities = torch.softmax(scaled, dim=-1)
    if params.top_p < 1:
        probabilities = nucleus(probabilities, params.top_p)
    cumulative = probabilities.cumsum(dim=-1)
    point = stream.at(position) * cumulative[-1]
    chosen = int(torch.searchsorted(cumulative, point, right=True))
    if chosen < len(cumulative):
        return chosen
    return int(probabilities.nonzero()[-1])  # the product rounded up to the total


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most likely tokens that together reach `top_p` (Holtzman et al. 2020), zero the others.

    Of equally likely ones the first in the vocabulary are kept. Only as many are sorted as it takes: a whole
    vocabulary takes milliseconds.
    """
    count = min(FIRST_SORTED, len(probabilities))
    while True:
        values = probabilities.topk(count).values
        reached = values.cumsum(dim=-1) - values >= top_p  # without itself
        if bool(reached[-1]) or count == len(probabilities):
            break
        count = min(8 * count, len(probabilities))
    kept = values[~reached]
    least = kept[-1]
    chosen = probabilities > least
    chosen[(probabilities == least).nonzero()[: int((kept == least).sum()), 0]] = True
    return torch.where(chosen, probabilities, torch.zeros_like(probabilities))


def top_tokens(scores: Tensor, count: int) -> list[TopTokens]:
    """The `count` best (id, log-probability) pairs of each row of log-probabilities (rows, vocabulary)."""
    values, ids = scores.topk(min(count, scores.shape[-1]), dim=-1)
    return [tuple(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]


def chosen_log_probs(scores: Tensor, ids: Sequence[int]) -> list[float]:
    """The log-probabilities of these tokens, one a row: the very floats `top_tokens` gives."""
    chosen: list[float] = scores[torch.arange(len(ids)), torch.tensor(ids, device=scores.device)].tolist()
    return chosen
