"""From logits to a token: greedy or drawn, with a random stream of its own for each request.

The stream is counter-based (Philox): the number for token `position` of choice `index` depends on nothing but
(seed, index, position), so a request gets the same tokens whatever it is batched with. The draw walks the
vocabulary in its fixed order: rounding differences between batches move the cut points a little but never reorder
them.
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
"""Likeliest tokens that are looked at first for a nucleus; eight times as many where they do not reach it."""


@dataclass(frozen=True)
class RandomStream:
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


@dataclass(frozen=True)
class Draw:
    """How token `position` of a choice is drawn. `before` are the tokens so far, the first `prompt` the prompt's.

    `allowed` (vocabulary,) leaves out all others, where there is a grammar.
    """

    params: SamplingParams
    stream: RandomStream
    position: int
    before: Sequence[int] = ()
    prompt: int = 0
    allowed: Tensor | None = None


def sample_tokens(logits: Tensor, draws: Sequence[Draw]) -> list[int | None]:
    """The next token for each row of logits (rows, vocabulary): the most likely at temperature 0, else one drawn.

    None for a row with a NaN, or with an infinity that no softmax survives.

    First come bias and penalties (`apply_penalties`), then tokens that a grammar does not allow are excluded, then the
    temperature divides. Tokens are drawn from the `top_k` most likely ones, of these from the nucleus of `top_p`, and
    of these from those at least `min_p` times as likely as the likeliest.
    """
    rows = list(logits)
    steered = [_only_allowed(apply_penalties(row, draw), draw) for row, draw in zip(rows, draws, strict=True)]
    if any(new is not old for new, old in zip(steered, rows, strict=True)):
        logits = torch.stack(steered)
    highest, best = logits.max(dim=-1)
    found: list[int | None] = [
        token if sound else None for token, sound in zip(best.tolist(), highest.isfinite().tolist(), strict=True)
    ]
    drawn = [n for n, draw in enumerate(draws) if found[n] is not None and draw.params.temperature > 0]
    if drawn:
        tokens = _drawn(logits[drawn].double() - highest[drawn, None], [draws[number] for number in drawn])
        for number, token in zip(drawn, tokens, strict=True):
            found[number] = token
    return found


def _drawn(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token for each row of fp64 logits (rows, vocabulary), the largest of a row 0."""
    device = logits.device
    logits = logits / torch.tensor([[draw.params.temperature] for draw in draws], dtype=torch.float64, device=device)
    for row, draw in zip(logits, draws, strict=True):
        if draw.params.top_k is not None and draw.params.top_k < len(row):
            row.copy_(_only_best(row, draw.params.top_k))
    probabilities = torch.softmax(logits, dim=-1)
    for row, draw in zip(probabilities, draws, strict=True):
        if draw.params.top_p < 1:
            row.copy_(keep_nucleus(row, draw.params.top_p))
        if draw.params.min_p > 0:
            row.masked_fill_(row < draw.params.min_p * row.max(), 0)
    cumulative = probabilities.cumsum(dim=-1)
    points = torch.tensor([draw.stream.at(draw.position) for draw in draws], dtype=torch.float64, device=device)
    chosen = torch.searchsorted(cumulative, points[:, None] * cumulative[:, -1:], right=True)[:, 0].tolist()
    return [  # beyond the last: the product rounded up to the total
        token if token < len(row) else int(row.nonzero()[-1]) for token, row in zip(chosen, probabilities, strict=True)
    ]


def apply_penalties(logits: Tensor, draw: Draw) -> Tensor:
    """Logits (vocabulary,) with a bias, and with tokens that were there before made less likely.

    `repetition_penalty` divides the logits of tokens in prompt and answer where they are positive and multiplies them
    where they are negative (Keskar et al., 2019, section 4.1); of the tokens in the answer `presence_penalty` is
    subtracted once, `frequency_penalty` as often as they occur (OpenAI).
    """
    device = logits.device
    params, before, prompt = draw.params, draw.before, draw.prompt
    if params.repetition_penalty != 1:
        logits = logits.clone()
        seen = torch.tensor(sorted(set(before)), dtype=torch.int64, device=device)
        found = logits[seen]
        rate = params.repetition_penalty
        logits[seen] = torch.where(found > 0, found / rate, found * rate)
    if (params.frequency_penalty or params.presence_penalty) and len(before) > prompt:
        counts = Counter(before[prompt:])
        ids = torch.tensor(list(counts), dtype=torch.int64, device=device)
        often = torch.tensor(list(counts.values()), dtype=logits.dtype, device=device)
        logits = logits.index_add(0, ids, -(often * params.frequency_penalty + params.presence_penalty))
    if params.logit_bias:
        ids = torch.tensor([token for token, _ in params.logit_bias], device=device)
        bias = torch.tensor([bias for _, bias in params.logit_bias], dtype=logits.dtype, device=device)
        logits = logits.index_add(0, ids, bias)
    return logits


def _only_allowed(logits: Tensor, draw: Draw) -> Tensor:
    """Logits (vocabulary,), minus infinity for what a grammar does not allow; unchanged where they are no numbers."""
    if draw.allowed is None or not bool(logits.max().isfinite()):
        return logits
    return logits.masked_fill(~draw.allowed.to(logits.device), -torch.inf)


def _only_best(logits: Tensor, count: int) -> Tensor:
    """Logits (vocabulary,) of all but the `count` largest as minus infinity; of equals the first stay."""
    least = logits.topk(count).values[-1]
    kept = logits > least
    kept[(logits == least).nonzero()[: count - int(kept.sum()), 0]] = True
    return logits.masked_fill(~kept, -torch.inf)


def keep_nucleus(probabilities: Tensor, top_p: float) -> Tensor:
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
