"""Strategy `tune`: train the soup on the sample, for as many passes as are best on held-out passages.

The start is what the selector, or a recipe, would mix; the training runs in a process of its own (`training.tuning`).
The trained soup has learnt from the sample, as its recipe records (`Tuning`), and is not a mixture of stored adapters.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from registry.adapters.loadable import Tensors
from registry.adapters.lora_ranks import on_all_linears
from registry.adapters.weights import (
    adapter_digest,
    count_parameters,
    load_tensors,
    save_tensors,
    save_unique,
    size_in_bytes,
)
from registry.cook.acceptance import check_verifiable
from registry.cook.answer import Outcome, evidence_of
from registry.cook.budget import TRAINING_PASSES, cut_training, passes_within, tuning_passes
from registry.cook.candidate import Candidate, Proposal, Scores, TrainedSoup
from registry.cook.ingredients import check_not_learnt
from registry.cook.job import CookJob
from registry.cook.mix import Mixed, MixPlan, mix
from registry.cook.sample import Sample
from registry.cook.statistics import with_statistics
from registry.mixing.auto import choose_mixing
from registry.mixing.report import relative_cost
from registry.spec import (
    AdapterConfig,
    AutoMixing,
    ConcatMixing,
    Evidence,
    LoraConfig,
    Recipe,
    RecompressMixing,
    Search,
    StoredAdapter,
    Tuned,
    Tuning,
    TuningOptions,
    TuningReport,
    TuningRequest,
)
from registry.stored.files import temporary_file

RATES = ((48, "0.005"), (24, "0.003"), (0, "0.001"))
"""(least number of training passages, learning rate)."""
ALL_LINEAR_RATES = ((24, "0.002"), (0, "0.001"))
"""The same for soups of LoRAs that are trained in all linear modules."""


def propose(job: CookJob) -> Proposal | Outcome:
    """The start and what training made of it, or the outcome of an equal request where the caller sees that.

    Raises InvalidSample for a sample of too few passages or tokens, InvalidParameter for a start that is not trained,
    or that has learnt from the sample already.
    """
    sample = job.sample
    assert sample is not None  # a CookRequest with effort `tune` has one
    check_verifiable(job.base, job.ingredients, effort=job.request.effort)
    check_not_learnt(job, job.ingredients, param="recipe")  # a selector leaves these out
    plan = with_statistics(job, _plan_of_start(job))
    job.report(2, f"mixing {len(plan.ingredients)} adapters")
    start = mix(job.registry, job.base, plan)
    tuning = _tuning(job, sample, start.config)
    recipe = start.recipe.model_copy(update={"tuning": tuning})
    earlier = _earlier_outcome(job, start, recipe)
    if earlier is not None:
        return earlier
    job.report(2, "tuning the soup on the sample")
    began = time.perf_counter()
    config, initial = _initial(start, tuning)
    tuned, tensors = _train(job, sample, config, initial, tuning)
    seconds = time.perf_counter() - began
    job.timer.add(tuned.base_seconds, sample.texts_of(tuned.held_out))
    soup = start if tensors is None else _tuned_soup(start, recipe, config, tensors, save_tensors(tensors))
    tokens = np.array(tuned.tokens)
    start_scores, tuned_scores = Scores(np.array(tuned.nll[0]), tokens), Scores(held_out_nll(tuned), tokens)
    return Proposal(
        candidates=(
            Candidate("selected", plan, trained=TrainedSoup(start, start_scores)),
            Candidate("tuned", plan, trained=TrainedSoup(soup, tuned_scores, is_start=tensors is None)),
        ),
        search=_search_of(sample, tuning, tuned, seconds),
        base=Scores(np.array(tuned.base_nll), tokens),
    )


def passes(passages: int, _adapters: int) -> float:
    """Passes of the base model over a sample of this number of passages."""
    return tuning_passes(passages)


def held_out_nll(tuned: Tuned) -> np.ndarray:
    """NLL of each held-out passage under the state that is best on all other passages: (passages,).

    No passage takes part in the choice of the state that it is scored under.
    """
    nll = np.array(tuned.nll)  # (states, passages)
    sums_of_the_rest = nll.sum(axis=1, keepdims=True) - nll
    scores: np.ndarray = nll[sums_of_the_rest.argmin(axis=0), np.arange(nll.shape[1])]
    return scores


def _plan_of_start(job: CookJob) -> MixPlan:
    """The mixture that training starts from: as narrow as one adapter, where the request leaves the mixing open."""
    plan = MixPlan(job.ingredients, job.request.mixing, job.request.max_width)
    choice = choose_mixing(plan.ingredients, plan.mixing, max_width=plan.max_width)
    is_wide = isinstance(choice.mixing, ConcatMixing) and len(plan.ingredients) > 1
    if isinstance(plan.mixing, AutoMixing) and is_wide:
        return replace(plan, mixing=RecompressMixing(scale=plan.mixing.scale))
    return plan


def _tuning(job: CookJob, sample: Sample, start: AdapterConfig) -> Tuning:
    """The training of `start` that the request asks for, with defaults filled in and cut to its budget."""
    options = job.request.tuning or TuningOptions()
    passages = len(sample.fit_texts)
    adds_modules = options.target_modules == "all-linear" and isinstance(start, LoraConfig) and not start.pruned
    rates = ALL_LINEAR_RATES if adds_modules else RATES
    passes = options.passes or TRAINING_PASSES
    if job.request.budget is not None:
        allowed = passes_within(job.request.budget, job, sample.texts)
        passes = cut_training(passes, allowed, len(sample.texts))
    return Tuning(
        sample=sample.report.digest,
        passes=passes,
        rate=options.rate or next(rate for least, rate in rates if passages >= least),
        batch=options.batch,
        max_tokens=options.max_tokens,
        seed=options.seed,
        dtype=job.base.entry.dtype,
        bos=None if job.base.entry.bos else False,
        on_all_passages=True,
        target_modules="all-linear" if adds_modules else None,
    )


def _initial(start: Mixed, tuning: Tuning) -> tuple[AdapterConfig, Tensors]:
    """The configuration and tensors that the training starts from; they compute what `start` does."""
    if tuning.target_modules is None:
        return start.config, start.tensors
    assert isinstance(start.config, LoraConfig)
    return on_all_linears(start.config, start.tensors, start.base.shape, seed=tuning.seed)


def _train(
    job: CookJob, sample: Sample, config: AdapterConfig, initial: Tensors, tuning: Tuning
) -> tuple[Tuned, Tensors | None]:
    """The report of the training, and the tensors it kept; None where it kept the initial ones.

    Tensors travel as blobs that nothing else names, and are deleted again.
    """
    blobs, split = job.registry.blobs, sample.split
    start_blob = blobs.put_bytes(save_unique(initial))
    with temporary_file(job.registry, start_blob):
        options = tuning.model_dump(include=Tuning.model_fields.keys() & TuningRequest.model_fields.keys())
        stored = StoredAdapter(config=config, blob=start_blob)
        request = TuningRequest(texts=sample.texts, start=stored, folds=split.folds, **options)
        tuned = job.computations.tune(job.base.entry, request)
    if tuned.blob is None:
        return tuned, None
    try:
        return tuned, load_tensors(blobs.read(tuned.blob))
    finally:
        blobs.delete(tuned.blob)


def _search_of(sample: Sample, tuning: Tuning, tuned: Tuned, seconds: float) -> Search:
    """The report on the training, without trials."""
    split = sample.split
    return Search(
        effort="tune",
        trials=(),
        decided_on=len(sample.texts if tuned.best_pass else sample.fit_texts),
        held_out=len(tuned.held_out),
        tokens=tuned.trained_tokens,
        seconds=seconds,
        tuning=TuningReport(
            passes=tuning.passes,
            kept=tuned.best_pass,
            rate=tuning.rate,
            trainings=len(split.folds) + (tuned.best_pass > 0),
            losses=tuple(sum(nll) / sum(tuned.tokens) for nll in tuned.nll),
            trained_losses=tuned.trained_nll,
        ),
    )


def _earlier_outcome(job: CookJob, start: Mixed, recipe: Recipe) -> Outcome | None:
    """The outcome of an equal request, with its evidence; None where the caller sees no such live soup.

    So a quick answer does not reveal that another key has trained on the same sample.
    """
    registry = job.registry
    with registry.database.read() as catalogue:
        row = catalogue.adapters.find_by_recipe(job.caller.namespaces, recipe.digest)
        stored = [] if row is None else catalogue.soups.evidence(row.id, most=1)
    if row is None or not stored or not registry.blobs.is_whole(row.weights_blob):
        return None
    data = registry.blobs.read(row.weights_blob)
    earlier = Evidence.model_validate({name: value for name, value in stored[-1].items() if name != "created_at"})
    evidence = evidence_of(job).model_copy(update={"search": earlier.search, "verification": earlier.verification})
    soup = _tuned_soup(start, recipe, row.config, load_tensors(data), data)
    return Outcome(replace(soup, cached=True), evidence)


def _tuned_soup(start: Mixed, recipe: Recipe, config: AdapterConfig, tensors: Tensors, data: bytes) -> Mixed:
    """The trained soup, which is no longer the mixture of its ingredients."""
    assert recipe.tuning is not None
    digest = adapter_digest(recipe.base_fingerprint, config, tensors)
    note = f"Tuned: it has learnt from sample {recipe.tuning.sample}, and is no mixture of its ingredients any more."
    report = start.report.model_copy(
        update={
            "parameters": count_parameters(config, tensors),
            "size_bytes": size_in_bytes(tensors),
            "width_out": config.width,
            "relative_cost": relative_cost(
                [ingredient.config for ingredient in start.ingredients], config, start.base.shape
            ),
            "residual": None,
            "residuals": None,
            "notes": (note,),
        }
    )
    return replace(
        start,
        recipe=recipe,
        config=config,
        tensors=tensors,
        data=data,
        digest=digest,
        report=report,
        cached=False,
        reason="",
    )
