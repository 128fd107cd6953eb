"""Mixtures by losses alone: what the likelihoods of some adapters, each by itself, say of how to mix them.

`expectation_maximisation` finds the weights of a mixture of their distributions, the base's among them, that makes a
text most likely; `greedy` adds one adapter after another to an even mixture while its loss falls. Neither needs a
gradient (docs/explanation/methods.md#by-losses).
"""

from __future__ import annotations

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
from registry.base_model.likelihood import batches, padded, token_log_probs
from registry.spec import AdapterConfig, ByLosses, StoredAdapter
from training.known import Known, key_of, name_of
from training.passages import CELLS, Rows, parted

ITERATIONS = 200
LEAST = 0.01
"""A weight of an adapter below it is 0."""
GREEDY, PART = 6, 4
"""Greedy search looks at the GREEDY adapters with the lowest loss, on every PART-th text."""

Candidate = tuple[AdapterConfig, Tensors]
Loaded = Callable[[int], Candidate]
"""A candidate by its number."""


@dataclass
class Singles:
    """Adapters scored by themselves on rows of two tokens or more; what is `known` to `owner` is not scored again.

    The rows of a part are scored together. `tokens` counts those that were scored.
    """

    base: LoadedBase
    rows: Rows
    parts: int
    owner: str
    known: Known
    tokens: int = 0

    def of(self, stored: StoredAdapter | None, load: Callable[[], Candidate] | None = None) -> np.ndarray:
        """log p in nats of every predicted token, one part after the other, under an adapter or the base: (tokens,)."""
        names = [] if stored is None else [name_of(stored)]
        parts = parted(self.rows, self.parts)
        keys = [key_of(self.owner, "scores", names, part) for part in parts]
        found = [self.known.get(key) for key in keys]
        missing = [number for number, one in enumerate(found) if one is None]
        adapter = None
        if missing and load is not None:
            config, tensors = load()
            adapter = from_tensors(config, self.base.shape, dict(tensors)).to(self.base.model.device)
        for number in missing:
            scores = token_scores(self.base, adapter, parts[number]).astype(np.float32)  # as they were computed
            self.tokens += len(scores)
            self.known.keep(keys[number], scores)
            found[number] = scores
        return np.concatenate([one for one in found if one is not None]).astype(float)


def by_losses(
    singles: Singles, stored: Sequence[StoredAdapter], numbers: Sequence[int], load: Loaded, *,
    fits: Callable[[Sequence[int]], bool], say: Callable[[int, str], None],
) -> ByLosses:  # fmt: skip
    """What scoring those of the `stored` candidates with these numbers one by one says of mixing them.

    `fits` says of numbers whether these may be mixed; `say` is called before each.
    """
    text = f"scoring {len(numbers)} adapters, each by itself"
    say(0, text)
    log_probs = [singles.of(None)]
    for done, number in enumerate(numbers, start=1):
        say(done, text)
        log_probs.append(singles.of(stored[number], partial(load, number)))
    alone = np.array([-one.mean() for one in log_probs])
    weights = expectation_maximisation(np.array(log_probs))
    best = [numbers[at] for at in np.argsort(alone[1:], kind="stable")[:GREEDY]]
    base, part = singles.base, singles.rows[::PART]
    configs, loaded = zip(*map(load, best), strict=True)
    bank = WeightedAdapter(configs, loaded, base.shape, device=base.model.device)

    def loss(members: Sequence[int]) -> float:
        say(len(numbers) + 1, "adding one adapter after another")
        with torch.no_grad():
            bank.coefficients.zero_()
            bank.coefficients[:, list(members)] = 1 / len(members)
            bank.apply_coefficients()
        return -float(token_scores(base, bank, part).mean())

    members = greedy(len(best), loss, fits=lambda some: fits([best[at] for at in some]))
    return ByLosses(
        scored=tuple(numbers),
        differences=tuple((alone[1:] - alone[0]).tolist()),
        em=tuple(np.where(weights < LEAST, 0.0, weights)[1:].tolist()),
        greedy=tuple(best[at] for at in members),
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
