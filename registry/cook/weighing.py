"""Weigh adapters on the passages to fit on, and propose mixtures with the weights found.

Shared by the strategies `quick` and `thorough`. The selector ranks the adapters. Gradients show which of them help, and
how much at each site (`training.coefficients`, in a separate process). Losses of single adapters add further evidence
(`training.by_losses`). For a sample with few passages, weighing is repeated for each fold without its passages.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from registry.adapters import sites_of
from registry.catalogue.rows import AdapterRow
from registry.cook.acceptance import check_verifiable
from registry.cook.budget import Depth, Size, cut_weighing, passes_within, screening_groups
from registry.cook.candidate import Candidate, Proposal
from registry.cook.ingredients import compatible
from registry.cook.job import CookJob
from registry.cook.mix import MixPlan
from registry.cook.sample import FEW, FOLDS, Sample
from registry.cook.shortlist import Adapter, Shortlist, shortlist
from registry.errors import Incompatible, InvalidSample
from registry.mixing import concat
from registry.mixing.compat import SoupIngredient
from registry.select.select import Chosen
from registry.spec import (
    MAX_INGREDIENTS,
    BaseShape,
    ConcatMixing,
    CookRequest,
    LeftOut,
    Passage,
    Search,
    StoredAdapter,
    Way,
    WeighedCandidate,
    Weighing,
    WeighingRequest,
    canonical_decimal,
    canonical_weights,
)

MOST_TOGETHER = MAX_INGREDIENTS + MAX_INGREDIENTS // 2
"""Adapters that are screened together for several rankings of the same passages."""
OVERFLOWS = "With it the base model gives values that are not finite numbers."


def propose_by_weighing(job: CookJob, depth: Depth) -> Proposal:
    """Weigh the ranked adapters and those the request names; propose the mixtures, and the selector's own soup.

    Raises InvalidSample for a sample with too few passages to hold some out. Raises InvalidParameter for a base or
    adapters without likelihoods, and for a budget that is too small. For an adapter that the request names, raises
    NotFound or Retired, InvalidParameter if it has learnt from the sample, and Incompatible if it cannot be
    concatenated with the others.
    """
    sample, selection = job.sample, job.selection
    assert sample is not None
    assert selection is not None
    split = sample.split
    if not all(split.folds):
        raise InvalidSample(
            f"{split.count} passages are too few to hold some out: send {FOLDS} or more.", param="sample"
        )
    weigher = _Weigher(job, depth, _within_budget(job, sample, selection, depth))
    tasks = [weigher.task(selection, job.ingredients, sample.fit_texts)]
    if split.fits_all:
        for fold in split.folds:
            rest = split.without(fold)
            chosen, ingredients = compatible(job.registry, job.request, selection.by(rest))
            tasks.append(weigher.task(chosen, ingredients, sample.texts_of(rest)))
    answer, *folds = [weigher.weigh(task) for task in _screened_together(tasks)]
    plans = [fold.plans for fold in folds]
    return Proposal(
        candidates=tuple(
            Candidate(way, plan, tuple(fold_plans.get(way) for fold_plans in plans))
            for way, plan in answer.plans.items()
        ),
        search=_search_of(job, answer, [answer, *folds], held_out=len(split.held_out)),
        single=_single(answer, folds),
        noise=_noise_requests(sample, folds or [answer]) if job.request.control else (),
    )


@dataclass(frozen=True)
class _Task:
    """Adapters to weigh on some passages; `request` is None where there are no adapters."""

    adapters: Shortlist
    selected: tuple[SoupIngredient, ...]
    request: WeighingRequest | None
    passages: int


@dataclass(frozen=True)
class _Weighed:
    """A finished task: its seconds, the plans with its weights by way, and the plan of the best single adapter."""

    task: _Task
    weighing: Weighing | None
    seconds: float
    plans: Mapping[Way, MixPlan]
    single: MixPlan | None


@dataclass(frozen=True)
class _Weigher:
    """Weighs tasks of one job; `limits` are what a budget leaves of each."""

    job: CookJob
    depth: Depth
    limits: Mapping[str, int]

    def task(self, selection: Chosen, selected: Sequence[SoupIngredient], texts: Sequence[Passage]) -> _Task:
        """The task of weighing the adapters of a ranking on texts."""
        job = self.job
        adapters = shortlist(job, selection)
        reasons = concat.check(adapters.ingredients, ConcatMixing()) if job.request.also else []
        if reasons:
            raise Incompatible("The adapters in 'also' cannot be put side by side: " + " ".join(reasons), param="also")
        check_verifiable(job.base, [*selected, *adapters.ingredients], effort=job.request.effort)
        request = None
        if adapters.adapters:
            request = weighing_request(job.request, self.depth, adapters.adapters, texts)
            cut = {name: min(most, getattr(request, name)) for name, most in self.limits.items()}
            request = request.model_copy(update={**cut, "owner": job.caller.key_id})
        return _Task(adapters, tuple(selected), request, len(texts))

    def weigh(self, task: _Task) -> _Weighed:
        """Weigh the adapters of a task."""
        job = self.job
        job.report(1, f"weighing {len(task.adapters.adapters)} adapters on {task.passages} passages")
        began = time.perf_counter()
        weighing = None if task.request is None else job.computations.weigh(job.base.entry, task.request)
        seconds = time.perf_counter() - began
        plans: dict[Way, MixPlan] = {}
        single = None
        if task.request is not None and weighing is not None:
            ingredients, max_width = task.adapters.ingredients, job.request.max_width
            plans = mixtures(weighing, task.request, ingredients, shape=job.base.shape, max_width=max_width)
            number = best_single(weighing)
            if number is not None:
                single = MixPlan((ingredients[number],), ConcatMixing(), max_width)
        selected = _without(task.selected, _overflowing(task.adapters, weighing))
        if selected:
            plans["selected"] = MixPlan(selected, job.request.mixing, job.request.max_width)
        return _Weighed(task, weighing, seconds, plans, single)


def _within_budget(job: CookJob, sample: Sample, selection: Chosen, depth: Depth) -> dict[str, int]:
    """The limits that a budget sets to each weighing, cut alike; raises InvalidParameter where that is too little."""
    if job.request.budget is None:
        return {}
    adapters = shortlist(job, selection).adapters
    if not adapters:
        return {}
    passes = passes_within(job.request.budget, job, sample.texts)
    return vars(cut_weighing(depth, Size.of(sample.split, len(adapters)), passes))


def _screened_together(tasks: Sequence[_Task]) -> list[_Task]:
    """The tasks, each of which screens the adapters of all tasks, so that they share the computation.

    The ranking without a fold may contain other adapters. If all of them are too many, or cannot be put side by side,
    each task screens its own.
    """
    ingredients = {ingredient.digest: ingredient for task in tasks for ingredient in task.adapters.ingredients}
    if len(tasks) < 2 or len(ingredients) > MOST_TOGETHER or concat.check(list(ingredients.values()), ConcatMixing()):
        return list(tasks)
    stored = {
        ingredient.digest: adapter
        for task in tasks
        if task.request is not None
        for ingredient, adapter in zip(task.adapters.ingredients, task.request.candidates, strict=True)
    }
    beside = tuple(stored[digest] for digest in sorted(stored))
    return [
        task if task.request is None else replace(task, request=task.request.model_copy(update={"beside": beside}))
        for task in tasks
    ]


def weighing_request(
    request: CookRequest, depth: Depth, adapters: Sequence[Adapter], texts: Sequence[Passage]
) -> WeighingRequest:
    """The request to weigh adapters on texts to a depth."""
    return WeighingRequest(
        texts=tuple(texts),
        candidates=tuple(StoredAdapter(config=row.config, blob=row.weights_blob) for row, _ in adapters),
        keep=request.options.max_ingredients or depth.members,
        max_width=request.max_width,
        groups=screening_groups(len(texts)),
        steps=depth.steps_over(len(texts)),
        batch=depth.batch(len(texts)),
        by_screen=len(texts) < FEW,
        alone=min(depth.alone, len(adapters)),
    )


# --- plans from a weighing ---------------------------------------------------------------------------


def mixtures(
    weighing: Weighing,
    request: WeighingRequest,
    ingredients: Sequence[SoupIngredient],
    *,
    shape: BaseShape,
    max_width: int,
) -> dict[Way, MixPlan]:
    """The exact mixtures with the weights of a weighing, by way; `request` is what was weighed."""
    plans: dict[Way, MixPlan] = {}
    weighed = _weighed_ingredients(weighing, ingredients, shape)
    if weighed:
        plans["weighed"] = MixPlan(tuple(weighed), ConcatMixing(), max_width)
    losses = weighing.by_losses
    if losses is None:
        return plans
    weights = {number: weight for number, weight in zip(losses.scored, losses.em, strict=True) if weight > 0}
    fitting = request.most_that_fit(sorted(weights, key=lambda number: -weights[number]))
    weights = {number: weights[number] for number in fitting}
    if weights:
        mixing = ConcatMixing(scale=canonical_decimal(sum(weights.values())))
        plans["em"] = MixPlan(_with_weights(ingredients, weights), mixing, max_width)
    if losses.greedy:
        even = dict.fromkeys(losses.greedy, 1.0)
        plans["greedy"] = MixPlan(_with_weights(ingredients, even), ConcatMixing(), max_width)
    return plans


def _overflowing(adapters: Shortlist, weighing: Weighing | None) -> list[AdapterRow]:
    """The adapters with which values of the base model were not finite."""
    if weighing is None:
        return []
    pairs = zip(adapters.adapters, weighing.screened, strict=True)
    return [row for (row, _), screened in pairs if screened is None]


def _without(selected: tuple[SoupIngredient, ...], rows: Sequence[AdapterRow]) -> tuple[SoupIngredient, ...]:
    """The ingredients without these adapters, at the weights that the others have beside each other."""
    digests = {row.digest for row in rows}
    weights = {
        number: float(ingredient.weight)
        for number, ingredient in enumerate(selected)
        if ingredient.digest not in digests
    }
    if len(weights) == len(selected):
        return selected
    return _with_weights(selected, weights) if weights else ()


def best_single(weighing: Weighing) -> int | None:
    """The number of the best single adapter on the passages to fit on; None if none has a coefficient.

    Adapters are compared by loss if it was computed, else by mean coefficient; the first wins a tie.
    """
    if not weighing.chosen:
        return None
    if weighing.by_losses is not None and weighing.by_losses.scored:
        differences = dict(zip(weighing.by_losses.scored, weighing.by_losses.differences, strict=True))
        return min(differences, key=lambda number: differences[number])
    coefficients = dict(zip(weighing.chosen, weighing.coefficients, strict=True))
    return max(coefficients, key=lambda number: fmean(coefficients[number].values()))


def _with_weights(ingredients: Sequence[SoupIngredient], weights: Mapping[int, float]) -> tuple[SoupIngredient, ...]:
    """The ingredients of these numbers, at these weights over their sum."""
    decimals = canonical_weights(list(weights.values()))
    return tuple(
        replace(ingredients[number], weight=decimal)
        for number, decimal in zip(weights, decimals, strict=True)
        if decimal != "0"
    )


def _weighed_ingredients(
    weighing: Weighing, ingredients: Sequence[SoupIngredient], shape: BaseShape
) -> list[SoupIngredient]:
    """The adapters with coefficients: the mean as the weight, and beside it a factor for each site."""
    weighed = []
    for number, by_site in _coefficients(weighing, ingredients, shape).items():
        weight = canonical_decimal(fmean(by_site.values()))
        if weight != "0":
            layers = {site: canonical_decimal(value / float(weight)) for site, value in by_site.items()}
            weighed.append(replace(ingredients[number], weight=weight, layers=layers))
    return weighed


def _coefficients(
    weighing: Weighing, ingredients: Sequence[SoupIngredient], shape: BaseShape
) -> dict[int, dict[str, float]]:
    """Coefficients by adapter and site, at the sites it has: a LoRA need not know every module another knows."""
    coefficients = {}
    for number, by_site in zip(weighing.chosen, weighing.coefficients, strict=True):
        sites = sites_of(ingredients[number].config, shape)
        coefficients[number] = {site: value for site, value in by_site.items() if site in sites}
    return coefficients


def _single(answer: _Weighed, folds: Sequence[_Weighed]) -> Candidate | None:
    """The best single adapter; each fold, if there are folds, is scored by the adapter that is best without it."""
    plan = answer.single
    return None if plan is None else Candidate("single", plan, tuple(fold.single for fold in folds))


def _noise_requests(sample: Sample, weighed: Sequence[_Weighed]) -> tuple[WeighingRequest, ...]:
    """The weighings again with random adapters of the same sizes, tried on the held-out passages of each fold."""
    requests = [fold.task.request for fold in weighed if fold.task.request is not None]
    if len(requests) < len(weighed):
        return ()
    return tuple(
        request.model_copy(update={"alone": 0, "noise": True, "unseen": sample.texts_of(held_out), "beside": ()})
        for request, held_out in zip(requests, sample.split.folds, strict=True)
    )


def _search_of(job: CookJob, answer: _Weighed, weighed: Sequence[_Weighed], *, held_out: int) -> Search:
    """The report on all weighings, without trials."""
    assert job.request.effort is not None
    weighings = [task.weighing for task in weighed if task.weighing is not None]
    adapters = answer.task.adapters
    overflowing = [
        LeftOut(ref=row.ref, digest=row.digest, domain=row.domain, reason=OVERFLOWS)
        for row in _overflowing(adapters, answer.weighing)
    ]
    return Search(
        effort=job.request.effort,
        candidates=_reported(adapters, answer.weighing, job.base.shape),
        left_out=(*overflowing, *adapters.excluded),
        more_left_out=adapters.more_excluded,
        trials=(),
        decided_on=answer.task.passages,
        held_out=held_out,
        tokens=sum(weighing.screen_tokens + weighing.step_tokens for weighing in weighings),
        seconds=sum(task.seconds for task in weighed),
    )


def _reported(adapters: Shortlist, weighing: Weighing | None, shape: BaseShape) -> tuple[WeighedCandidate, ...]:
    """Every adapter with its screen, best first, and its mean coefficient where it has one."""
    if weighing is None:
        return ()
    coefficients = _coefficients(weighing, adapters.ingredients, shape)
    losses = weighing.by_losses
    alone = {} if losses is None else dict(zip(losses.scored, losses.differences, strict=True))
    means = {number: fmean(by_site.values()) for number, by_site in coefficients.items()}
    candidates = [
        WeighedCandidate(
            ref=row.ref,
            digest=row.digest,
            domain=row.domain,
            score=screened.score,
            standard_error=screened.standard_error,
            coefficient=means.get(number),
            alone=alone.get(number),
        )
        for number, ((row, _), screened) in enumerate(zip(adapters.adapters, weighing.screened, strict=True))
        if screened is not None
    ]
    return tuple(sorted(candidates, key=lambda candidate: (-candidate.score, candidate.digest)))
