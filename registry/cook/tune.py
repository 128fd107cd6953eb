"""Effort `tune`: a soup is trained on the sample, as far as passages that were held out say that it helps.

Called by `cook`. The start is what the selector, or a recipe by hand, would mix; the training runs in a process of its
own (`training.tuning`). What comes of it has learnt from the sample: its recipe says so (`Tuning`), and it is no
mixture of the registry's adapters alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from registry.adapters.loadable import Tensors
from registry.adapters.weights import adapter_digest, load_tensors, save_tensors, save_unique
from registry.context import BaseModel, Caller, Registry
from registry.cook.mix import Mixed
from registry.cook.plan import cut_training, default_passes, folds_of, passes_within
from registry.cook.timed import TimedBase
from registry.cook.verify import verification_of
from registry.progress import Progress
from registry.samples.sample import CheckedSample
from registry.spec import (
    CookRequest,
    Evidence,
    Recipe,
    Search,
    StoredAdapter,
    Trial,
    Tuned,
    Tuning,
    TuningOptions,
    TuningReport,
    TuningRequest,
    Verification,
    Way,
)

RATES = ((48, "0.005"), (24, "0.003"), (0, "0.001"))
"""From so many training passages on: the rate."""

Tune = Callable[[str, TuningRequest], Tuned]
"""(id of the base model, request) -> what came of it: runs where gradients may run."""


@dataclass(frozen=True)
class TunedSoup:
    """What is the answer to effort `tune`: the soup after training or, where that is better, its start."""

    mixed: Mixed
    evidence: Evidence


def tune_soup(
    registry: Registry, caller: Caller, base: TimedBase, request: CookRequest, start: Mixed, sample: CheckedSample,
    evidence: Evidence, *, tune: Tune, progress: Progress,
) -> TunedSoup:  # fmt: skip
    """Train `start` on the sample, or take what an equal request gave before, where the caller sees that.

    Raises InvalidSample for a sample of too few passages or tokens, InvalidParameter for a start that is not trained.
    """
    folds, whole = folds_of(len(sample.texts))
    tuning = _tuning(request.tuning or TuningOptions(), base, sample, folds, whole=whole)
    if request.budget is not None:
        allowed = passes_within(request.budget, base, sample.texts, progress=progress)
        passes = cut_training(tuning.passes, allowed, len(sample.texts))
        tuning = tuning.model_copy(update={"passes": passes})
    recipe = start.recipe.model_copy(update={"tuning": tuning})
    known = _again(registry, caller, start, recipe, evidence)
    if known is not None:
        return known
    progress(2, 4, "tuning the soup on the sample")
    began = time.perf_counter()
    tuned, tensors = _trained(registry, base, start, tuning, sample.texts, folds, whole=whole, tune=tune)
    seconds = time.perf_counter() - began
    base.add(tuned.base_seconds, [sample.texts[number] for number in tuned.held_out])
    ways = 1 if tensors is None else 2  # whichever is better is the answer
    tried: dict[Way, Verification] = {
        "selected": _verification(tuned, tuned.nll[0], ways), "tuned": _verification(tuned, honest(tuned), ways)
    }  # fmt: skip
    search = Search(
        effort="tune",
        trials=tuple(
            Trial(
                way=way, members=len(start.parts), width=start.config.width, difference=one.difference,
                standard_error=one.standard_error,
            )
            for way, one in tried.items()
        ),
        decided_on=len(sample.texts) - (0 if whole else len(tuned.held_out)),
        held_out=len(tuned.held_out),
        tokens=tuned.trained_tokens,
        seconds=seconds,
        tuning=TuningReport(
            passes=tuning.passes, kept=tuned.kept, rate=tuning.rate, trainings=len(folds) + whole,
            losses=tuple(sum(nll) / sum(tuned.tokens) for nll in tuned.nll), trained_losses=tuned.trained_nll,
        ),
    )  # fmt: skip
    better = tensors is not None and tried["tuned"].soup_nll < tried["selected"].soup_nll
    found = evidence.model_copy(update={"search": search, "verification": tried["tuned" if better else "selected"]})
    if not better or tensors is None:
        return TunedSoup(start, found)
    return TunedSoup(_made(start, recipe, tensors, save_tensors(tensors)), found)


def honest(tuned: Tuned) -> tuple[float, ...]:
    """NLL of each held-out passage under the state that all the others would have kept: (passages,).

    So no passage has a part in choosing the state that it is scored under.
    """
    nll = np.array(tuned.nll)  # (states, passages)
    others = nll.sum(axis=1, keepdims=True) - nll
    return tuple(nll[others.argmin(axis=0), np.arange(nll.shape[1])].tolist())


def _tuning(
    options: TuningOptions, base: BaseModel, sample: CheckedSample, folds: Sequence[Sequence[int]], *, whole: bool
) -> Tuning:
    """What is asked for, with all that was left open."""
    passages = len(sample.texts) - (0 if whole else len(folds[0]))
    return Tuning(
        sample=sample.report.digest,
        passes=options.passes or default_passes(passages, options.batch),
        rate=options.rate or next(rate for least, rate in RATES if passages >= least),
        batch=options.batch,
        max_tokens=options.max_tokens,
        seed=options.seed,
        dtype=base.entry.dtype,
    )


def _trained(
    registry: Registry, base: BaseModel, start: Mixed, tuning: Tuning, texts: Sequence[str],
    folds: tuple[tuple[int, ...], ...], *, whole: bool, tune: Tune,
) -> tuple[Tuned, Tensors | None]:  # fmt: skip
    """What the training says, and the tensors it kept, None for the start's.

    The start and what is kept travel as blobs that nothing else names: they are deleted again.
    """
    sent = registry.blobs.put_bytes(save_unique(start.tensors))
    try:
        asked = tuning.model_dump(include={"passes", "rate", "batch", "max_tokens", "seed"})
        stored = StoredAdapter(config=start.config, blob=sent)
        tuned = tune(base.entry.id, TuningRequest(texts=tuple(texts), start=stored, folds=folds, whole=whole, **asked))
    finally:
        registry.blobs.delete(sent)
    if tuned.blob is None:
        return tuned, None
    tensors = load_tensors(registry.blobs.read(tuned.blob))
    registry.blobs.delete(tuned.blob)
    return tuned, tensors


def _verification(tuned: Tuned, nll: Sequence[float], ways: int) -> Verification:
    return verification_of(np.array(nll), np.array(tuned.base_nll), np.array(tuned.tokens), held_out=True, ways=ways)


def _again(registry: Registry, caller: Caller, start: Mixed, recipe: Recipe, evidence: Evidence) -> TunedSoup | None:
    """What an equal request gave before, with the evidence of then; None where the caller sees no such live soup.

    So nobody learns from a quick answer that others have trained on the very same sample.
    """
    with registry.database.read() as catalogue:
        row = catalogue.adapters.find_by_recipe(caller.namespaces, recipe.digest)
        before = [] if row is None else catalogue.soups.evidence(row.id)
    if row is None or not before or not registry.blobs.is_whole(row.weights_blob):
        return None
    data = registry.blobs.read(row.weights_blob)
    then = Evidence.model_validate({name: value for name, value in before[-1].items() if name != "created_at"})
    found = evidence.model_copy(update={"search": then.search, "verification": then.verification})
    return TunedSoup(replace(_made(start, recipe, load_tensors(data), data), cached=True), found)


def _made(start: Mixed, recipe: Recipe, tensors: Tensors, data: bytes) -> Mixed:
    """The trained soup, as a mixture that no longer is the exact one of its ingredients."""
    assert recipe.tuning is not None
    digest = adapter_digest(recipe.base_fingerprint, start.config, tensors)
    learnt = f"Tuned: it has learnt from sample {recipe.tuning.sample}, and is no mixture of its ingredients any more."
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    report = start.report.model_copy(update={"residual": None, "size_bytes": size, "notes": (learnt,)})
    return replace(start, recipe=recipe, tensors=tensors, data=data, digest=digest, report=report, cached=False, why="")
