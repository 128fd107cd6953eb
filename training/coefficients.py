"""Weighing: find by gradients which candidate adapters help on a sample, and their coefficient at each site.

Let the base with candidates side by side add sum_i w_li f_i(x) at site l. The screen is the gradient at w = 0: how
much each candidate, alone and to first order, lowers the mean NLL per token. A few steps of Adam on the exact mixture
then give the best candidates coefficients w >= 0 with no constraint on their sum. The result is the weights of a
recipe: adapters are mixed by them as by any others, and no tensor is learnt. The method is ours
(docs/explanation/methods.md#weighing); LoraHub (Huang et al., COLM 2024) searches one weight an adapter without
gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from registry.adapters import attached
from registry.adapters.loadable import Tensors
from registry.adapters.weighted import WeightedAdapter
from registry.base_model import LoadedBase
from registry.progress import Progress, silent
from registry.spec import ByLosses, Screened, StoredAdapter, Unseen, Weighing, WeighingRequest
from training.by_losses import MIN_WEIGHT, Candidate, Singles, by_losses
from training.passages import Rows, add_gradients, draw_batches, rows_of, split_rows, tokens_of
from training.score_cache import ScoreCache, key_of, name_of
from training.tasks.language import passage_scores

Load = Callable[[StoredAdapter], Tensors]


def weigh(
    base: LoadedBase,
    request: WeighingRequest,
    load: Load,
    *,
    cache: ScoreCache | None = None,
    progress: Progress = silent,
) -> Weighing:
    """Screen the candidates, learn coefficients for the best, and score `request.alone` of them one by one.

    Leaves the base unchanged. `cache` holds what earlier requests of the same owner computed for the same passages;
    adapters of noise are never cached. A candidate with which some value is not finite gets no screen, and the others
    are weighed as without it.

    Raises InvalidSample for texts without a token to predict, Incompatible for candidates of another base, and what
    `load` and `progress` raise.
    """
    names = {name_of(candidate) for candidate in request.candidates}
    beside = [adapter for adapter in request.beside if name_of(adapter) not in names]
    rows = [row for row in rows_of(base, request.texts, max_tokens=request.max_tokens) if row.scored]
    cache = ScoreCache(0) if cache is None or request.noise else cache
    run = _WeighingRun(base, request, (*request.candidates, *beside), load, progress, cache)
    order = np.random.default_rng(request.seed).permutation(len(rows))
    scores = run.screen([rows[number] for number in order[: request.screened]])
    mixture: WeightedAdapter | None = None
    losses: list[float] = []
    while chosen := request.most_that_fit([number for number in _best_first(scores) if scores[number].score > 0]):
        starts = {number: scores[number].score for number in chosen}
        mixture, losses = run.learn(starts, rows)
        if mixture is not None:
            break
        for number in _culprits(chosen, partial(run.learns, starts, rows, steps=len(losses))):
            del scores[number]
    singles, alone_tokens = None, 0
    if request.alone:
        singles, alone_tokens = run.by_losses(_best_first(scores)[: request.alone], rows)
    return Weighing(
        screened=tuple(scores.get(number) for number in range(len(request.candidates))),
        chosen=chosen,
        coefficients=() if mixture is None else _by_site(mixture),
        losses=tuple(losses) if chosen else (),
        screen_tokens=run.screen_tokens,
        step_tokens=run.step_tokens,
        alone_tokens=alone_tokens,
        by_losses=singles,
        unseen=run.on_unseen(mixture) if request.unseen else None,
    )


def _best_first(scores: Mapping[int, Screened]) -> list[int]:
    """The screened candidates, those that lower the loss most first."""
    return sorted(scores, key=lambda number: (-scores[number].score, number))


def _culprits(numbers: Sequence[int], is_finite: Callable[[Sequence[int]], bool]) -> list[int]:
    """The cause among `numbers`, which together give no finite values; all if each half by itself is finite."""
    if len(numbers) == 1:
        return list(numbers)
    middle = len(numbers) // 2
    broken = [half for half in (numbers[:middle], numbers[middle:]) if not is_finite(half)]
    return [number for half in broken for number in _culprits(half, is_finite)] or list(numbers)


@dataclass
class _WeighingRun:
    """A request on its base model; counts the tokens that gradients were computed on, without cached results."""

    base: LoadedBase
    request: WeighingRequest
    stored: Sequence[StoredAdapter]
    """The candidates, then the adapters that are only screened beside them."""
    load: Load
    progress: Progress
    cache: ScoreCache
    screen_tokens: int = 0
    step_tokens: int = 0

    def screen(self, rows: Rows) -> dict[int, Screened]:
        """How much each candidate lowers the mean NLL per token, with its standard error over groups of rows.

        Leaves out candidates with which some value is not finite: beside others, they would make all slopes NaN.
        """
        groups = split_rows(rows, self.request.groups)
        names = [name_of(adapter) for adapter in self.stored]
        numbers = sorted(range(len(names)), key=lambda number: names[number])  # so that a ranking changes no bit
        while numbers:
            falls = self._falls(numbers, groups)
            if np.isfinite(falls[-1]).all():
                break
            culprits = _culprits(numbers, partial(self._has_finite_falls, groups[len(falls) - 1]))
            numbers = [number for number in numbers if number not in culprits]
        if not numbers:
            return {}
        tokens = np.array([tokens_of(group) for group in groups], dtype=float)
        means = tokens @ falls / tokens.sum()
        errors = falls.std(0, ddof=1) / len(groups) ** 0.5 if len(groups) > 1 else [None] * len(numbers)
        screened = {
            number: Screened(score=float(mean), standard_error=None if error is None else float(error))
            for number, mean, error in zip(numbers, means, errors, strict=True)
        }
        return {number: screened[number] for number in range(len(self.request.candidates)) if number in screened}

    def _falls(self, numbers: Sequence[int], groups: Sequence[Rows]) -> np.ndarray:
        """How much each of these adapters lowers each group's mean NLL, to first order: (groups, adapters).

        Ends with the first group for which some value is not finite.
        """
        names = [name_of(self.stored[number]) for number in numbers]
        mixture: WeightedAdapter | None = None
        falls: list[np.ndarray] = []
        for done, group in enumerate(groups):
            key = key_of(self.request.owner, "falls", names, group)
            row = self.cache.get(key)
            if row is None:
                self._report(done, f"screening {len(numbers)} adapters")
                mixture = self._mixture(numbers) if mixture is None else mixture
                row = self._slopes(mixture, group)
                self.cache.add(key, row)
            falls.append(row)
            if not np.isfinite(row).all():
                break
        return np.array(falls, dtype=float)

    def _has_finite_falls(self, group: Rows, numbers: Sequence[int]) -> bool:
        """Return True if all slopes of these adapters on a group are finite."""
        return bool(np.isfinite(self._falls(numbers, [group])).all())

    def _slopes(self, mixture: WeightedAdapter, rows: Rows) -> np.ndarray:
        """How much each adapter of a mixture lowers the mean NLL of rows, to first order: (adapters,)."""
        with attached(self.base.model, mixture):
            add_gradients(self.base, rows, before_forward=mixture.apply_coefficients)
        assert mixture.coefficients.grad is not None
        slopes: np.ndarray = -mixture.coefficients.grad.sum(0).double().cpu().numpy()
        mixture.coefficients.grad = None
        self.screen_tokens += tokens_of(rows)
        return slopes

    def learn(
        self, scores: Mapping[int, float], rows: Rows, *, steps: int | None = None
    ) -> tuple[WeightedAdapter | None, list[float]]:
        """Learn coefficients of the candidates with these scores, in all steps or the first `steps`.

        Coefficients start even, or in proportion to the scores of the screen. Returns the mixture, None once a loss or
        a coefficient is not finite, and the loss before each step.
        """
        request, mixture = self.request, self._mixture(list(scores))
        starts = torch.full((len(scores),), request.start)
        if request.by_screen:
            starts = torch.tensor(list(scores.values())) / sum(scores.values()) * min(1.0, request.start * len(scores))
        with torch.no_grad():
            mixture.coefficients.copy_(starts.expand_as(mixture.coefficients))
        optimiser = torch.optim.Adam([mixture.coefficients], lr=request.rate, betas=(0.9, 0.95))
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=request.steps)
        draw = np.random.default_rng([request.seed, 1])
        batches = draw_batches(rows, batch=request.batch, steps=request.steps, draw=draw)
        losses: list[float] = []
        with attached(self.base.model, mixture):
            for number, batch in enumerate(batches[:steps]):
                self._report(self.request.groups + number, f"weighing {len(scores)} adapters")
                losses.append(add_gradients(self.base, batch, before_forward=mixture.apply_coefficients))
                self.step_tokens += tokens_of(batch)
                optimiser.step()
                schedule.step()
                optimiser.zero_grad()
                with torch.no_grad():
                    mixture.coefficients.clamp_(min=0)
                if not (math.isfinite(losses[-1]) and bool(mixture.coefficients.isfinite().all())):
                    return None, losses
        with torch.no_grad():
            mixture.coefficients[mixture.coefficients < MIN_WEIGHT] = 0
        return mixture, losses

    def learns(self, scores: Mapping[int, float], rows: Rows, numbers: Sequence[int], *, steps: int) -> bool:
        """Return True if the candidates `numbers`, a part of `scores`, have finite values in the first `steps`."""
        return self.learn({number: scores[number] for number in numbers}, rows, steps=steps)[0] is not None

    def by_losses(self, numbers: Sequence[int], rows: Rows) -> tuple[ByLosses, int]:
        """Mix these candidates by their own losses; also return the tokens that they were scored on."""
        request, done = self.request, self.request.groups + self.request.steps
        singles = Singles(self.base, rows, request.groups, request.owner, self.cache)
        mixtures = by_losses(
            singles,
            request.candidates,
            numbers,
            self._loaded,
            fits=request.fits,
            report=lambda number, message: self._report(done + number, message),
        )
        return mixtures, singles.tokens

    def on_unseen(self, mixture: WeightedAdapter | None) -> Unseen:
        """Score the texts that took no part in learning, under the mixture or, without one, under the base."""
        if mixture is not None:
            mixture.apply_coefficients()
        with nullcontext() if mixture is None else attached(self.base.model, mixture):
            scores = passage_scores(self.base, self.request.unseen, block=self.base.shape.context)
        return Unseen(nll=tuple(score.nll for score in scores), tokens=tuple(score.tokens for score in scores))

    def _mixture(self, numbers: Sequence[int]) -> WeightedAdapter:
        configs, loaded = zip(*map(self._loaded, numbers), strict=True)
        return WeightedAdapter(configs, loaded, self.base.shape, device=self.base.model.device)

    def _loaded(self, number: int) -> Candidate:
        stored = self.stored[number]
        tensors = self.load(stored)
        if self.request.noise:
            tensors = noise_like(tensors, np.random.default_rng([self.request.seed, 2, number]))
        return stored.config, tensors

    def _report(self, done: int, message: str) -> None:
        alone = self.request.alone
        self.progress(done, self.request.groups + self.request.steps + (alone + 2 if alone else 0), message)


def noise_like(tensors: Tensors, generator: np.random.Generator) -> dict[str, Tensor]:
    """Random tensors of the same shapes, dtypes, means and standard deviations.

    Houlsby's trained LayerNorms are unchanged: they replace the base's, which would not work with random ones.
    """
    noise = {name: tensor for name, tensor in tensors.items() if ".base_norm." in name}
    for name in sorted(tensors.keys() - noise.keys()):
        original = tensors[name].double()
        values = torch.from_numpy(generator.standard_normal(tuple(original.shape)))
        noise[name] = (original.mean() + values * original.std(correction=0)).to(tensors[name].dtype)
    return noise


def _by_site(mixture: WeightedAdapter) -> tuple[dict[str, float], ...]:
    coefficients = mixture.coefficients.detach().double().cpu()
    return tuple(dict(zip(mixture.sites, column.tolist(), strict=True)) for column in coefficients.T)
