"""Plans of efforts: how far each goes by itself, what that takes, and how far it goes within a budget.

What something takes is told in passes of the base over the sample, and in seconds once `cook` has timed one
(`cook.timed`). A pass with its gradients counts as GRADIENT of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from registry.cook.choose import FEW, split
from registry.cook.timed import TimedBase
from registry.errors import InvalidParameter
from registry.progress import Progress
from registry.spec import Budget, CookRequest, Effort, Price, Spent, TuningOptions, WeighingRequest


@dataclass(frozen=True)
class Depth:
    """How far weighing goes: `steps` for the coefficients of at most `members`, and how many are scored `alone`."""

    members: int
    steps: int
    alone: int


DEPTHS: Mapping[Effort | None, Depth] = {
    "quick": Depth(members=5, steps=12, alone=0),
    "thorough": Depth(members=32, steps=30, alone=8),
}
LEAST_SCREENED, LEAST_STEPS, LEAST_ALONE = 5, 4, 3
"""What a budget leaves of weighing at least. Where it leaves fewer than LEAST_ALONE alone, none is scored so."""
FOLDS = 3
"""With fewer passages than FEW each is held out of one of so many weighings or trainings."""
STEPS, MOST_PASSES = 48, 6
"""Steps that a training has by default, if that takes no more passes."""
GRADIENT = 3.5
"""Passes of the base that a pass with its gradients takes; with adapters attached something more than three."""
ALONE = 1.2
"""Passes of the base that a pass with one adapter takes."""
GREEDY = 7
"""Times over the texts that scoring the base and searching greedily take, beside each adapter alone."""
START_SECONDS = 5.0
"""Of the process that computes gradients, until it has loaded a small base model."""
ROUNDING = 1e-9
TIMED = 8
"""Passages that are scored to know what a pass takes, where a budget is in seconds or tokens."""
SCREENED, BATCH = (int(WeighingRequest.model_fields[name].default) for name in ("screened", "batch"))
DEARER: tuple[Effort, ...] = ("instant", "quick", "thorough", "tune")


def folds_of(count: int) -> tuple[tuple[tuple[int, ...], ...], bool]:
    """Passages that are held out together, by their numbers, and whether the answer then comes of all of them.

    Of few passages every one is held out once, from a weighing or a training that is like the last one but for it.
    """
    if count >= FEW:
        return (tuple(split(count)[1]),), False
    return tuple(tuple(range(first, count, FOLDS)) for first in range(FOLDS)), True


def default_passes(passages: int, batch: int) -> int:
    """As many passes over so many training passages as make STEPS steps."""
    return min(MOST_PASSES, math.ceil(STEPS / math.ceil(passages / batch)))


# --- prices ----------------------------------------------------------------------------------------


def beyond(request: CookRequest, spent: Spent, passages: int, *, tuning: bool) -> tuple[Price, ...]:
    """The efforts that would do more with the same sample of so many passages, with their prices.

    What a recipe by hand leaves is training; `tuning` says whether the namespace allows it. Without a pass that was
    timed, or where nothing is to be verified, there is none.
    """
    if spent.forward_seconds is None or not request.verify:
        return ()
    efforts = DEARER[DEARER.index(request.effort or "instant") + 1 :]
    wanted = (one for one in efforts if (tuning if one == "tune" else request.recipe is None))
    prices = {effort: passes_of(effort, passages) for effort in wanted}
    return tuple(
        Price(effort=effort, passes=passes, seconds=START_SECONDS + passes * spent.forward_seconds)
        for effort, passes in prices.items()
    )


def passes_of(effort: Effort, passages: int) -> float:
    """About how many passes of the base over a sample of so many passages an effort takes, with its own defaults."""
    if effort == "tune":
        folds, whole = folds_of(passages)
        trained = passages if whole else passages - len(folds[0])
        return 1 + default_passes(trained, TuningOptions().batch) * _training(passages)
    depth, (folds, whole) = DEPTHS[effort], folds_of(passages)
    sizes = [passages - len(fold) for fold in folds] + [passages] * whole
    return 2 + sum(
        _weighing(min(SCREENED, size), depth.steps * min(BATCH, size), scored_by_losses(depth.alone, size), passages)
        for size in sizes
    )


def _weighing(screened: int, stepped: int, alone: int, passages: int) -> float:
    """Passes of the base that weighing takes: passages with gradients, and ones that adapters are scored on."""
    return (GRADIENT * (screened + stepped) + ALONE * alone) / passages


def scored_by_losses(alone: int, texts: int) -> int:
    """Passages that adapters are scored on for the mixtures by losses: each alone, the base, and greedy search."""
    return (alone + GREEDY) * texts if alone else 0


def _training(passages: int) -> float:
    """Passes of the base that one pass of training takes, on all folds of a sample of so many passages."""
    folds, whole = folds_of(passages)
    if not whole:
        return GRADIENT * (passages - len(folds[0])) / passages
    return GRADIENT * len(folds)  # on two thirds of the sample for each fold, and then on all of it


# --- budgets ---------------------------------------------------------------------------------------


def passes_within(budget: Budget, base: TimedBase, texts: Sequence[str], *, progress: Progress) -> float:
    """How many passes of the base over the texts a budget allows, for which some of them may be scored."""
    if budget.passes is not None:
        return budget.passes
    some = texts[:TIMED]
    scores = base.score(some, None, progress=progress)
    share = sum(map(len, some)) / sum(map(len, texts))
    if budget.tokens is not None:
        return budget.tokens * share / max(1, sum(score.tokens for score in scores))
    forward = base.spent(texts).forward_seconds or 0.0
    return max(0.0, (budget.seconds or 0.0) - START_SECONDS) / max(forward, 1e-6)


def cut_weighing(asked: WeighingRequest, passes: float, passages: int, *, times: int = 1) -> WeighingRequest:
    """The request with as much less of everything as makes it fit, where weighing alike so many `times` is to.

    Raises InvalidParameter where that is too little.
    """
    passes /= times
    texts = len(asked.texts)
    screened, batch = min(asked.screened, texts), min(asked.batch, texts)
    price = _weighing(screened, asked.steps * batch, scored_by_losses(asked.alone, texts), passages)
    if passes >= price:
        return asked
    least = _weighing(min(LEAST_SCREENED, texts), LEAST_STEPS * batch, 0, passages)
    if passes < least - ROUNDING:
        raise _too_small(passes * times, least * times)
    share, few = passes / price, min(LEAST_SCREENED, texts)
    alone, some = math.floor(asked.alone * share), max(few, math.floor(screened * share))
    for screened, scored in ((some, alone if alone >= LEAST_ALONE else 0), (some, 0), (few, 0)):
        left = passes - _weighing(screened, 0, scored_by_losses(scored, texts), passages)
        steps = math.floor(left * passages / (GRADIENT * batch) + ROUNDING)
        if steps >= LEAST_STEPS:
            break
    return asked.model_copy(update={"screened": screened, "alone": scored, "steps": min(asked.steps, steps)})


def cut_training(wanted: int, passes: float, passages: int) -> int:
    """As many of the wanted passes of training as fit; raises InvalidParameter where not one does."""
    price = _training(passages)
    if passes < price:
        raise _too_small(passes, price)
    return min(wanted, math.floor(passes / price))


def _too_small(passes: float, least: float) -> InvalidParameter:
    return InvalidParameter(
        f"The budget allows {passes:.1f} passes of the base over the sample, and this effort takes at least "
        f"{least:.1f}: allow more, or choose a smaller effort.",
        param="budget",
    )
