"""Mixtures chosen by losses alone: adapters are scored one by one, and their likelihoods say how to mix them.

`expectation_maximisation` finds the weights of a mixture of their distributions and the base's that makes a text most
likely. `greedy` adds one adapter after another to an even mixture while its loss falls. Neither needs a gradient
(docs/explanation/methods.md#by-losses).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from registry.adapters import AdapterModule, attached, from_tensors
from registry.adapters.loadable import Tensors
from registry.adapters.weighted import WeightedAdapter
from registry.base_model import LoadedBase
from registry.base_model.likelihood import batches, scored_log_probs
from registry.spec import AdapterConfig, ByLosses, StoredAdapter
from training.passages import CELLS, Rows, split_rows
from training.score_cache import ScoreCache, key_of, name_of

ITERATIONS = 200
MIN_WEIGHT = 0.01
"""Smaller weights of an adapter become 0."""
GREEDY_CANDIDATES, GREEDY_STRIDE = 6, 4
"""Greedy search tries the adapters with the lowest loss, on a regular sample of the rows."""

Candidate = tuple[AdapterConfig, Tensors]
Loaded = Callable[[int], Candidate]
"""Loads a candidate by its number."""


@dataclass
class Singles:
    """Scores of single adapters on rows, cached for `owner`.

    Rows are scored in `groups` groups. `tokens` counts the tokens scored, those from the cache excluded.
    """

    base: LoadedBase
    rows: Rows
    groups: int
    owner: str
    cache: ScoreCache
    tokens: int = 0

    def of(self, stored: StoredAdapter | None, load: Callable[[], Candidate] | None = None) -> np.ndarray:
        """log p in nats of every predicted token, group by group, under an adapter or the base: (tokens,)."""
        names = [] if stored is None else [name_of(stored)]
        groups = split_rows(self.rows, self.groups)
        keys = [key_of(self.owner, "scores", names, group) for group in groups]
        scores = [self.cache.get(key) for key in keys]
        missing = [number for number, array in enumerate(scores) if array is None]
        adapter = None
        if missing and load is not None:
            config, tensors = load()
            adapter = from_tensors(config, self.base.shape, dict(tensors)).to(self.base.model.device)
        for number in missing:
            # float32 is what they were computed in
            scores[number] = array = token_scores(self.base, adapter, groups[number]).astype(np.float32)
            self.tokens += len(array)
            self.cache.add(keys[number], array)
        return np.concatenate([array for array in scores if array is not None]).astype(float)


def by_losses(
    singles: Singles,
    stored: Sequence[StoredAdapter],
    numbers: Sequence[int],
    load: Loaded,
    *,
    fits: Callable[[Sequence[int]], bool],
    report: Callable[[int, str], None],
) -> ByLosses:
    """Score the `stored` candidates of these numbers one by one, and derive mixtures of them.

    `fits` says if candidates may be mixed; `report` is called before each is scored. A candidate with a loss that is
    not finite is left out.
    """
    text = f"scoring {len(numbers)} adapters, each by itself"
    report(0, text)
    log_probs = [singles.of(None)]
    scored: list[int] = []
    for done, number in enumerate(numbers, start=1):
        report(done, text)
        scores = singles.of(stored[number], partial(load, number))
        if np.isfinite(scores).all():
            log_probs.append(scores)
            scored.append(number)
    if not scored:
        return ByLosses(scored=(), differences=(), em=(), greedy=())
    alone = np.array([-scores.mean() for scores in log_probs])
    weights = expectation_maximisation(np.array(log_probs))
    best = [scored[rank] for rank in np.argsort(alone[1:], kind="stable")[:GREEDY_CANDIDATES]]
    base, rows = singles.base, singles.rows[::GREEDY_STRIDE]
    configs, loaded = zip(*map(load, best), strict=True)
    mixture = WeightedAdapter(configs, loaded, base.shape, device=base.model.device)

    def loss_of(members: Sequence[int]) -> float:
        report(len(numbers) + 1, "adding one adapter after another")
        with torch.no_grad():
            mixture.coefficients.zero_()
            mixture.coefficients[:, list(members)] = 1 / len(members)
            mixture.apply_coefficients()
        loss = -float(token_scores(base, mixture, rows).mean())
        return loss if math.isfinite(loss) else math.inf

    members = greedy(len(best), loss_of, fits=lambda members: fits([best[number] for number in members]))
    return ByLosses(
        scored=tuple(scored),
        differences=tuple((alone[1:] - alone[0]).tolist()),
        em=tuple(np.where(weights < MIN_WEIGHT, 0.0, weights)[1:].tolist()),
        greedy=tuple(best[number] for number in members),
    )


@torch.no_grad()
def token_scores(base: LoadedBase, adapter: AdapterModule | None, rows: Rows) -> np.ndarray:
    """log p in nats of every predicted token of rows, one row after the other: (tokens,)."""
    by_row: dict[int, np.ndarray] = {}
    with nullcontext() if adapter is None else attached(base.model, adapter):
        for numbers in batches([len(row.ids) for row in rows], max_tokens=CELLS):
            batch = [rows[number] for number in numbers]
            scores = scored_log_probs(base.model, batch, pad_id=0).double().cpu().numpy()
            for number, row, log_probs in zip(numbers, batch, scores, strict=True):
                by_row[number] = log_probs[row.start - 1 : len(row.ids) - 1]
    return np.concatenate([by_row[number] for number in range(len(rows))])


def expectation_maximisation(log_probs: np.ndarray, *, iterations: int = ITERATIONS) -> np.ndarray:
    """Weights (models,), which sum to 1, of models that gave tokens the log-probabilities (models, tokens) in nats.

    Each iteration raises the likelihood of sum_i pi_i p_i(token), from an even start (Dempster et al., 1977).
    """
    probabilities = np.exp(log_probs - log_probs.max(axis=0))  # a factor per token cancels out
    weights = np.full(len(log_probs), 1 / len(log_probs))
    for _ in range(iterations):
        shares = weights[:, None] * probabilities
        weights = (shares / shares.sum(axis=0)).mean(axis=1)
    return weights


def greedy(
    count: int, loss: Callable[[Sequence[int]], float], *, fits: Callable[[Sequence[int]], bool]
) -> tuple[int, ...]:
    """Members of an even mixture, of 0 to `count` - 1: the best alone, then the one that lowers the loss most.

    Ends when no member that fits lowers it. Of equal ones the first is added.
    """
    chosen: list[int] = []
    least = np.inf
    while remaining := [number for number in range(count) if number not in chosen and fits([*chosen, number])]:
        losses = [loss([*chosen, number]) for number in remaining]
        best = int(np.argmin(losses))
        if losses[best] >= least:
            break
        least = losses[best]
        chosen.append(remaining[best])
    return tuple(chosen)
