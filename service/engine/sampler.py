"""Sampling of tokens from logits, greedy or random, reproducibly for each request.

Random numbers are counter-based (Philox): the number for token `position` of choice `index` depends only on (seed,
index, position). So a request gets the same tokens in every batch. Tokens are drawn by their cumulative probability in
the order of the vocabulary: rounding differences between batches move its bounds a little, but never reorder them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from service.engine.request import SamplingParams, TopTokens

_MASK = (1 << 64) - 1
FIRST_SORTED = 256
"""Likeliest tokens that are sorted at first for a nucleus; eight times as many if they do not reach it."""


@dataclass(frozen=True)
class RandomStream:
    """Random numbers in [0, 1) for one choice, by position."""

    seed: int
    index: int

    def at(self, position: int) -> float:
        """The number for token `position`."""
        key = np.array([self.seed & _MASK, self.index], dtype=np.uint64)
        bits = np.random.Philox(key=key, counter=position)
        return float(np.random.Generator(bits).random())


def log_probs(logits: Tensor) -> Tensor:
    """fp32 log-probabilities of logits (..., vocabulary)."""
    logits = logits.float()
    return logits - torch.logsumexp(logits, dim=-1, keepdim=True)


@dataclass(frozen=True)
class Draw:
    """Inputs for sampling token `position` of a choice, besides logits.

    `ids` are the tokens so far, the first `prompt_length` those of the prompt. `allowed` is a grammar's mask
    (vocabulary,).
    """

    params: SamplingParams
    stream: RandomStream
    position: int
    ids: Sequence[int] = ()
    prompt_length: int = 0
    allowed: Tensor | None = None


def sample_tokens(logits: Tensor, draws: Sequence[Draw]) -> list[int | None]:
    """Sample the next token for each row of logits (rows, vocabulary): the most likely at temperature 0.

    None for a row with a NaN or positive infinity, or with negative infinity alone.

    First come bias and penalties (`apply_penalties`), then tokens that a grammar does not allow are excluded, then the
    temperature divides. Tokens are drawn from the `top_k` most likely ones, of these from the nucleus of `top_p`, and
    of these from those at least `min_p` times as likely as the likeliest.
    """
    rows = list(logits)
    adjusted = [_mask_disallowed(apply_penalties(row, draw), draw) for row, draw in zip(rows, draws, strict=True)]
    if any(new is not old for new, old in zip(adjusted, rows, strict=True)):
        logits = torch.stack(adjusted)
    highest, best = logits.max(dim=-1)
    tokens: list[int | None] = [
        token if is_finite else None
        for token, is_finite in zip(best.tolist(), highest.isfinite().tolist(), strict=True)
    ]
    random = [n for n, draw in enumerate(draws) if tokens[n] is not None and draw.params.temperature > 0]
    if random:
        sampled = _sample_random(logits[random].double() - highest[random, None], [draws[n] for n in random])
        for n, token in zip(random, sampled, strict=True):
            tokens[n] = token
    return tokens


def _sample_random(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token for each row of fp64 logits (rows, vocabulary), the largest of each row 0."""
    device = logits.device
    logits = logits / torch.tensor([[draw.params.temperature] for draw in draws], dtype=torch.float64, device=device)
    for row, draw in zip(logits, draws, strict=True):
        if draw.params.top_k is not None and draw.params.top_k < len(row):
            row.copy_(_mask_all_but_top(row, draw.params.top_k))
    probabilities = torch.softmax(logits, dim=-1)
    for row, draw in zip(probabilities, draws, strict=True):
        if draw.params.top_p < 1:
            row.copy_(keep_nucleus(row, draw.params.top_p))
        if draw.params.min_p > 0:
            row.masked_fill_(row < draw.params.min_p * row.max(), 0)
    cumulative = probabilities.cumsum(dim=-1)
    points = torch.tensor([draw.stream.at(draw.position) for draw in draws], dtype=torch.float64, device=device)
    tokens = torch.searchsorted(cumulative, points[:, None] * cumulative[:, -1:], right=True)[:, 0].tolist()
    return [  # an index behind the last: the product was rounded up to the total
        token if token < len(row) else int(row.nonzero()[-1]) for token, row in zip(tokens, probabilities, strict=True)
    ]


def apply_penalties(logits: Tensor, draw: Draw) -> Tensor:
    """Return logits (vocabulary,) with bias, and penalties for tokens that occurred.

    `repetition_penalty` divides positive logits of tokens in prompt and answer, and multiplies negative ones (Keskar et
    al., 2019, section 4.1). From tokens in the answer, `presence_penalty` is subtracted once and `frequency_penalty`
    once for each occurrence (OpenAI).
    """
    device = logits.device
    params = draw.params
    if params.repetition_penalty != 1:
        logits = logits.clone()
        ids = torch.tensor(sorted(set(draw.ids)), dtype=torch.int64, device=device)
        values, penalty = logits[ids], params.repetition_penalty
        logits[ids] = torch.where(values > 0, values / penalty, values * penalty)
    if (params.frequency_penalty or params.presence_penalty) and len(draw.ids) > draw.prompt_length:
        counts = Counter(draw.ids[draw.prompt_length :])
        ids = torch.tensor(list(counts), dtype=torch.int64, device=device)
        occurrences = torch.tensor(list(counts.values()), dtype=logits.dtype, device=device)
        logits = logits.index_add(0, ids, -(occurrences * params.frequency_penalty + params.presence_penalty))
    if params.logit_bias:
        ids = torch.tensor([token for token, _ in params.logit_bias], device=device)
        bias = torch.tensor([bias for _, bias in params.logit_bias], dtype=logits.dtype, device=device)
        logits = logits.index_add(0, ids, bias)
    return logits


def _mask_disallowed(logits: Tensor, draw: Draw) -> Tensor:
    """Return logits (vocabulary,), minus infinity where a grammar forbids the token; unchanged if not finite."""
    if draw.allowed is None or not bool(logits.max().isfinite()):
        return logits
    return logits.masked_fill(~draw.allowed.to(logits.device), -torch.inf)


def _mask_all_but_top(logits: Tensor, count: int) -> Tensor:
    """Return logits (vocabulary,), minus infinity for all but the `count` largest; of equal ones the first stay."""
    return logits.masked_fill(~_mask_of(logits.topk(count).values, logits), -torch.inf)


def keep_nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Zero all probabilities but those of the fewest tokens that together reach `top_p` (Holtzman et al. 2020).

    Of equally likely ones the first in the vocabulary stay. Sorts only as many as needed: a whole vocabulary takes
    milliseconds.
    """
    count = min(FIRST_SORTED, len(probabilities))
    while True:
        values = probabilities.topk(count).values
        reached = values.cumsum(dim=-1) - values >= top_p  # by the likelier tokens alone
        if bool(reached[-1]) or count == len(probabilities):
            break
        count = min(8 * count, len(probabilities))
    return torch.where(_mask_of(values[~reached], probabilities), probabilities, torch.zeros_like(probabilities))


def _mask_of(largest: Tensor, values: Tensor) -> Tensor:
    """A mask of `values` (vocabulary,), True for the `largest`, in descending order; of equal ones the first."""
    least = largest[-1]
    mask = values > least
    mask[(values == least).nonzero()[: len(largest) - int(mask.sum()), 0]] = True
    return mask


def top_tokens(scores: Tensor, count: int) -> list[TopTokens]:
    """The `count` best (id, log-probability) pairs of each row of log-probabilities (rows, vocabulary)."""
    values, ids = scores.topk(min(count, scores.shape[-1]), dim=-1)
    return [tuple(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]


def chosen_log_probs(scores: Tensor, ids: Sequence[int]) -> list[float]:
    """The log-probability of a token in each row of `scores`: the floats that `top_tokens` has."""
    values: list[float] = scores[torch.arange(len(ids)), torch.tensor(ids, device=scores.device)].tolist()
    return values
