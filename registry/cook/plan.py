"""Plans of efforts: how far each goes by itself, what that takes, and how far it goes within a budget.

What something takes is told in passes of the base over the sample, and in seconds once `cook` has timed one
(`cook.timed`). A pass with its gradients counts as several of them, the more the more adapters are attached.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from registry.cook.choose import FEW, MOST, split
from registry.cook.timed import TimedBase
from registry.errors import InvalidParameter
from registry.progress import Progress
from registry.spec import Budget, CookRequest, Effort, Price, Spent, TuningOptions, WeighingRequest


@dataclass(frozen=True)
class Depth:
    """How far weighing goes: `steps` for the coefficients of at most `members`, and how many are scored `alone`.

    Of few texts a step takes fewer, so that all steps together go over each of them about `turns` times at most.
    """

    members: int
    steps: int
    turns: int
    alone: int

    def batch(self, texts: int) -> int:
        """Texts of a step, where there are so many."""
        return max(1, min(BATCH, self.turns * texts // self.steps))

    def steps_over(self, texts: int) -> int:
        """Steps, where there are so many texts."""
        batch = self.batch(texts)
        return self.steps if batch == BATCH else max(LEAST_STEPS, round(self.turns * texts / batch))


DEPTHS: Mapping[Effort | None, Depth] = {
    "quick": Depth(members=5, steps=12, turns=2, alone=0),
    "thorough": Depth(members=32, steps=30, turns=4, alone=8),
}
LEAST_SCREENED, LEAST_STEPS, LEAST_ALONE = 5, 4, 3
"""What a budget leaves of weighing at least. Where it leaves fewer than LEAST_ALONE alone, none is scored so."""
FOLDS = 3
"""With fewer passages than FEW each is held out of one of so many weighings or trainings."""
STEPS, MOST_PASSES = 48, 6
"""Steps that a training has by default, if that takes no more passes."""
GRADIENT, AN_ADAPTER = 3.2, 0.06
"""Passes of the base that a pass with its gradients takes, and what each adapter that is attached adds."""
TRAINING = 3.5
"""Passes of the base that a pass of training one adapter takes."""
ALONE = 1.2
"""Passes of the base that a pass with one adapter takes."""
GREEDY = 6
"""Times over the texts that searching greedily takes."""
WAYS: Mapping[Effort | None, int] = {"quick": 4, "thorough": 6}
"""Soups that are tried on what is held out."""
START_SECONDS = 5.0
"""Of the process that computes gradients, until it has loaded a small base model."""
ROUNDING = 1e-9
TIMED = 8
"""Passages that are scored to know what a pass takes, where a budget is in seconds or tokens."""
SCREENED, BATCH, PARTS = (int(WeighingRequest.model_fields[name].default) for name in ("screened", "batch", "parts"))
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


def parts_of(texts: int) -> int:
    """Parts in which so many texts are screened: of few each by itself, as what is held out is another each time."""
    return texts if texts < FEW else PARTS


@dataclass(frozen=True)
class Size:
    """How much there is to weigh: the texts of each weighing, of which the first has all that the others have.

    What the first finds of a text and an adapter the others know (`training.score_cache`).
    """

    texts: tuple[int, ...]
    passages: int
    candidates: int

    @classmethod
    def of(cls, passages: int, candidates: int) -> Size:
        """That of a sample of so many passages."""
        folds, whole = folds_of(passages)
        held = [passages - len(fold) for fold in folds]
        return cls((*[passages] * whole, *held), passages, candidates)


@dataclass(frozen=True)
class Cut:
    """What is left of a weighing's depth: passages that are screened, steps, and adapters scored by themselves."""

    screened: int
    steps: int
    alone: int


# --- prices ----------------------------------------------------------------------------------------


def beyond(
    request: CookRequest, spent: Spent, passages: int, *, candidates: int, tuning: bool
) -> tuple[Price, ...]:  # fmt: skip
    """The efforts that would do more with the same sample of so many passages, with their prices.

    What a recipe by hand leaves is training; `tuning` says whether the namespace allows it. Without a pass that was
    timed, or where nothing is to be verified, there is none.
    """
    if spent.forward_seconds is None or not request.verify:
        return ()
    efforts = DEARER[DEARER.index(request.effort or "instant") + 1 :]
    wanted = (one for one in efforts if (tuning if one == "tune" else request.recipe is None))
    prices = {effort: passes_of(effort, passages, candidates) for effort in wanted}
    return tuple(
        Price(effort=effort, passes=passes, seconds=START_SECONDS + passes * spent.forward_seconds)
        for effort, passes in prices.items()
    )


def passes_of(effort: Effort, passages: int, candidates: int) -> float:
    """About how many passes of the base over a sample of so many passages an effort takes, with its own defaults."""
    folds, whole = folds_of(passages)
    held = sum(map(len, folds)) / passages
    if effort == "tune":
        passes = default_passes(passages - (0 if whole else len(folds[0])), TuningOptions().batch)
        return 1 + held * (2 + passes) + passes * _training(passages)
    depth, size = DEPTHS[effort], Size.of(passages, candidates)
    weighed = _weighing(depth, size, Cut(SCREENED, depth.steps, min(depth.alone, candidates)))
    return 1 + held * WAYS[effort] + weighed


def _weighing(depth: Depth, size: Size, cut: Cut) -> float:
    """Passes of the base that weighing takes, so far as it is cut."""
    screened = min(cut.screened, size.texts[0])
    stepped = sum(min(cut.steps, depth.steps_over(texts)) * depth.batch(texts) for texts in size.texts)
    screening, stepping = (GRADIENT + AN_ADAPTER * min(most, size.candidates) for most in (MOST, depth.members))
    alone = ALONE * scored_by_losses(cut.alone, size.texts)
    return (screening * screened + stepping * stepped + alone) / size.passages


def scored_by_losses(alone: int, texts: Sequence[int]) -> int:
    """Passages that are scored for the mixtures by losses: by the base and each adapter alone, and by greedy search.

    The first of the `texts` of several weighings are all that there are.
    """
    return (alone + 1) * texts[0] + GREEDY * sum(texts) if alone else 0


def _training(passages: int) -> float:
    """Passes of the base that one pass of training takes, on all folds of a sample of so many passages."""
    folds, whole = folds_of(passages)
    if not whole:
        return TRAINING * (passages - len(folds[0])) / passages
    return TRAINING * len(folds)  # on two thirds of the sample for each fold, and then on all of it


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


def cut_weighing(depth: Depth, size: Size, passes: float) -> Cut:
    """As much of a depth as fits, of everything alike; raises InvalidParameter where that is too little."""
    whole = Cut(min(SCREENED, size.texts[0]), depth.steps, min(depth.alone, size.candidates))
    price = _weighing(depth, size, whole)
    if passes >= price:
        return whole
    few = min(LEAST_SCREENED, size.texts[0])
    least = _weighing(depth, size, Cut(few, LEAST_STEPS, 0))
    if passes < least - ROUNDING:
        raise _too_small(passes, least)
    share = passes / price
    alone, some = math.floor(whole.alone * share), max(few, math.floor(whole.screened * share))
    tried = [Cut(some, LEAST_STEPS, alone if alone >= LEAST_ALONE else 0), Cut(some, LEAST_STEPS, 0)]
    fitting = (one for one in tried if _weighing(depth, size, one) <= passes)
    cut = next(fitting, Cut(few, LEAST_STEPS, 0))
    steps = [replace(cut, steps=steps) for steps in range(LEAST_STEPS, depth.steps + 1)]
    return max((one for one in steps if _weighing(depth, size, one) <= passes), key=lambda one: one.steps, default=cut)


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
