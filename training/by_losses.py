"""Mixtures by losses alone: what the likelihoods of some adapters, each by itself, say of how to mix them.

`expectation_maximisation` finds the weights of a mixture of their distributions, the base's among them, that makes a
text most likely; `greedy` adds one adapter after another to an even mixture while its loss falls. Neither needs a
gradient (docs/explanation/methods.md#by-losses).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import torch

from registry.adapters import AdapterModule, attached, from_tensors
from registry.adapters.loadable import Tensors
from registry.adapters.weighted import WeightedAdapter
from registry.base_model import LoadedBase
from registry.likelihood import batches, padded, token_log_probs
from registry.spec import AdapterConfig, ByLosses
from training.passages import CELLS, Rows

ITERATIONS = 200
LEAST = 0.01
"""A weight of an adapter below it is 0."""
GREEDY, PART = 6, 4
"""Greedy search looks at the GREEDY adapters with the lowest loss, on every PART-th text."""

Candidate = tuple[AdapterConfig, Tensors]


def by_losses(
    base: LoadedBase, candidates: Sequence[Candidate], numbers: Sequence[int], rows: Rows, *,
    fits: Callable[[Sequence[int]], bool], say: Callable[[int, str], None],
) -> ByLosses:  # fmt: skip
    """What scoring candidates (called by `numbers`) one by one says of mixing them; `say` is called before each.

    `fits` says of numbers whether these may be mixed.
    """
    text = f"scoring {len(candidates)} adapters, each by itself"
    say(0, text)
    log_probs = [token_scores(base, None, rows)]
    for done, (config, tensors) in enumerate(candidates, start=1):
        say(done, text)
        adapter = from_tensors(config, base.shape, dict(tensors)).to(base.model.device)
        log_probs.append(token_scores(base, adapter, rows))
    alone = np.array([-one.mean() for one in log_probs])
    weights = expectation_maximisation(np.array(log_probs))
    best = np.argsort(alone[1:], kind="stable")[:GREEDY].tolist()
    part = rows[::PART]
    bank = WeightedAdapter(
        [candidates[at][0] for at in best], [candidates[at][1] for at in best], base.shape, device=base.model.device
    )

    def loss(members: Sequence[int]) -> float:
        say(len(candidates) + 1, "adding one adapter after another")
        with torch.no_grad():
            bank.coefficients.zero_()
            bank.coefficients[:, list(members)] = 1 / len(members)
            bank.apply_coefficients()
        return -float(token_scores(base, bank, part).mean())

    members = greedy(len(best), loss, fits=lambda some: fits([numbers[best[at]] for at in some]))
    return ByLosses(
        scored=tuple(numbers),
        differences=tuple((alone[1:] - alone[0]).tolist()),
        em=tuple(np.where(weights < LEAST, 0.0, weights)[1:].tolist()),
        greedy=tuple(numbers[best[at]] for at in members),
    )


@torch.no_grad()
def token_scores(base: LoadedBase, adapter: AdapterModule | None, rows: Rows) -> np.ndarray:
    """log p in nats of every predicted token of rows of two tokens or more, one row after the other: (tokens,)."""
    found: dict[int, np.ndarray] = {}
    with nullcontext() if adapter is None else attached(base.model, adapter):
        for some in batches([len(row) for row in rows], max_tokens=CELLS):
            ids, mask = padded([rows[at] for at in some], pad_id=0, device=base.model.device)
            scores = token_log_probs(base.model, ids, mask).double().cpu().numpy()
            found |= {at: one[: len(rows[at]) - 1] for at, one in zip(some, scores, strict=True)}
    return np.concatenate([found[at] for at in range(len(rows))])


def expectation_maximisation(log_probs: np.ndarray, *, iterations: int = ITERATIONS) -> np.ndarray:
    """Weights (models,), which sum to 1, of models that gave tokens the log-probabilities (models, tokens) in nats.

    Each iteration raises the likelihood of sum_i pi_i p_i(token), from an even start (Dempster et al., 1977).
    """
    probabilities = np.exp(log_probs - log_probs.max(axis=0))  # a factor of a token's own changes nothing
    weights = np.full(len(log_probs), 1 / len(log_probs))
    for _ in range(iterations):
        shares = weights[:, None] * probabilities
        weights = (shares / shares.sum(axis=0)).mean(axis=1)
    return weights


def greedy(
    count: int, loss: Callable[[Sequence[int]], float], *, fits: Callable[[Sequence[int]], bool]
) -> tuple[int, ...]:
    """Members of an even mixture, of 0 to `count` - 1: the best alone, then whichever lowers the loss of all the most.

    Ends where none of those that fit lowers it. Of equal ones the first is taken.
    """
    chosen: list[int] = []
    least = np.inf
    while others := [at for at in range(count) if at not in chosen and fits([*chosen, at])]:
        losses = [loss([*chosen, number]) for number in others]
        best = int(np.argmin(losses))
        if losses[best] >= least:
            break
        least = losses[best]
        chosen.append(others[best])
    return tuple(chosen)
