"""Weighing: find by gradients which candidate adapters help on a sample, and their coefficient at each site.

Let the base with candidates side by side add sum_i w_li f_i(x) at site l. The screen is the gradient at w = 0: how
much each candidate, alone and to first order, lowers the mean NLL per token. A few steps of Adam on the exact mixture
then give the best candidates coefficients w >= 0 with no constraint on their sum. The result is the weights of a
recipe: adapters are mixed by them as by any others, and no tensor is learnt. The method is ours
(docs/explanation/methods.md#weighing); LoraHub (Huang et al., COLM 2024) searches one weight an adapter without
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

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
    adapters of noise are never cached.

    Raises InvalidSample for texts without a token to predict, Incompatible for candidates of another base, and what
    `load` and `progress` raise.
    """
    names = {name_of(candidate) for candidate in request.candidates}
    beside = [adapter for adapter in request.beside if name_of(adapter) not in names]
    rows = [row for row in rows_of(base, request.texts, max_tokens=request.max_tokens) if row.scored]
    cache = ScoreCache(0) if cache is None or request.noise else cache
    run = _WeighingRun(base, request, (*request.candidates, *beside), load, progress, cache)
    order = np.random.default_rng(request.seed).permutation(len(rows))
    scores, screen_tokens = run.screen([rows[number] for number in order[: request.screened]])
    ranked = sorted(range(len(scores)), key=lambda number: (-scores[number].score, number))
    chosen = request.most_that_fit([number for number in ranked if scores[number].score > 0])
    mixture: WeightedAdapter | None = None
    losses: list[float] = []
    step_tokens = 0
    if chosen:
        mixture, losses, step_tokens = run.learn(chosen, [scores[number].score for number in chosen], rows)
    singles, alone_tokens = None, 0
    if request.alone:
        singles, alone_tokens = run.by_losses(ranked[: request.alone], rows)
    return Weighing(
        screened=tuple(scores),
        chosen=chosen,
        coefficients=() if mixture is None else _by_site(mixture),
        losses=tuple(losses),
        screen_tokens=screen_tokens,
        step_tokens=step_tokens,
        alone_tokens=alone_tokens,
        by_losses=singles,
        unseen=run.on_unseen(mixture) if request.unseen else None,
    )


@dataclass(frozen=True)
class _WeighingRun:
    base: LoadedBase
    request: WeighingRequest
    stored: Sequence[StoredAdapter]
    """The candidates, then the adapters that are only screened beside them."""
    load: Load
    progress: Progress
    cache: ScoreCache

    def screen(self, rows: Rows) -> tuple[list[Screened], int]:
        """How much each candidate lowers the mean NLL per token, with its standard error over groups of rows.

        Returns the scores and the tokens that gradients were computed on; cached groups take none.
        """
        groups = split_rows(rows, self.request.groups)
        falls, computed_tokens = self._falls(groups)
        tokens = np.array([tokens_of(group) for group in groups], dtype=float)
        scores = (tokens @ falls / tokens.sum()).tolist()
        errors = (falls.std(0, ddof=1) / len(groups) ** 0.5).tolist() if len(groups) > 1 else [None] * len(scores)
        pairs = zip(scores, errors, strict=True)
        return [Screened(score=score, standard_error=error) for score, error in pairs], computed_tokens

    def _falls(self, groups: Sequence[Rows]) -> tuple[np.ndarray, int]:
        """How much each candidate lowers each group's mean NLL, to first order: (groups, candidates), and its tokens.

        Adapters are screened in the order of their names, so that their ranking changes no bit.
        """
        names = [name_of(adapter) for adapter in self.stored]
        order = sorted(range(len(names)), key=lambda number: names[number])
        keys = [key_of(self.request.owner, "falls", [names[number] for number in order], group) for group in groups]
        rows = [self.cache.get(key) for key in keys]
        missing = [number for number, row in enumerate(rows) if row is None]
        if missing:
            mixture = self._mixture(order)
            with attached(self.base.model, mixture):
                for number in missing:
                    self._report(number, f"screening {len(order)} adapters")
                    add_gradients(self.base, groups[number], before_forward=mixture.apply_coefficients)
                    assert mixture.coefficients.grad is not None
                    rows[number] = row = -mixture.coefficients.grad.sum(0).double().cpu().numpy()
                    mixture.coefficients.grad = None
                    self.cache.put(keys[number], row)
        columns = np.argsort(order)[: len(self.request.candidates)]
        return np.array(rows, dtype=float)[:, columns], sum(tokens_of(groups[number]) for number in missing)

    def learn(
        self, chosen: Sequence[int], scores: Sequence[float], rows: Rows
    ) -> tuple[WeightedAdapter, list[float], int]:
        """Learn coefficients; return the mixture, the loss before each step, and the tokens of all steps.

        Coefficients start even, or in proportion to the scores of the screen.
        """
        request, mixture = self.request, self._mixture(chosen)
        starts = torch.full((len(chosen),), request.start)
        if request.by_screen:
            starts = torch.tensor(scores) / sum(scores) * min(1.0, request.start * len(chosen))
        with torch.no_grad():
            mixture.coefficients.copy_(starts.expand_as(mixture.coefficients))
        optimiser = torch.optim.Adam([mixture.coefficients], lr=request.rate, betas=(0.9, 0.95))
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, total_iters=request.steps)
        draw = np.random.default_rng([request.seed, 1])
        batches = draw_batches(rows, batch=request.batch, steps=request.steps, draw=draw)
        losses: list[float] = []
        tokens = 0
        with attached(self.base.model, mixture):
            for number, batch in enumerate(batches):
                self._report(self.request.groups + number, f"weighing {len(chosen)} adapters")
                losses.append(add_gradients(self.base, batch, before_forward=mixture.apply_coefficients))
                tokens += tokens_of(batch)
                optimiser.step()
                schedule.step()
                optimiser.zero_grad()
                with torch.no_grad():
                    mixture.coefficients.clamp_(min=0)
        with torch.no_grad():
            mixture.coefficients[mixture.coefficients < MIN_WEIGHT] = 0
        return mixture, losses, tokens

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
    """Random tensors of the same shapes, dtypes, means and standard deviations."""
    noise = {}
    for name in sorted(tensors):
        original = tensors[name].double()
        values = torch.from_numpy(generator.standard_normal(tuple(original.shape)))
        noise[name] = (original.mean() + values * original.std(correction=0)).to(tensors[name].dtype)
    return noise


def _by_site(mixture: WeightedAdapter) -> tuple[dict[str, float], ...]:
    coefficients = mixture.coefficients.detach().double().cpu()
    return tuple(dict(zip(mixture.sites, column.tolist(), strict=True)) for column in coefficients.T)
