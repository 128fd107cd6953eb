"""What the next efforts would take for the same sample, in seconds and in passes of the base over it.

Called by `cook`, which has timed what it scored itself (`cook.timed`).
"""

from __future__ import annotations

from registry.cook.choose import split
from registry.cook.search import DEPTHS
from registry.cook.tune import default_passes, folds_of
from registry.spec import CookRequest, Effort, Price, Spent, TuningOptions, WeighingRequest

GRADIENT = 3.5
"""Passes of the base that a pass with its gradients takes; with adapters attached something more than three."""
ALONE = 1.2
"""Passes of the base that a pass with one adapter takes."""
START_SECONDS = 5.0
"""Of the process that computes gradients, until it has loaded a small base model."""
SCREENED, BATCH = (int(WeighingRequest.model_fields[name].default) for name in ("screened", "batch"))
DEARER: tuple[Effort, ...] = ("instant", "quick", "thorough", "tune")


def beyond(request: CookRequest, spent: Spent, passages: int, *, tuning: bool) -> tuple[Price, ...]:
    """The efforts that would do more with the same sample of so many passages, with their prices.

    What a recipe by hand leaves is training; `tuning` says whether the namespace allows it. Without a pass that was
    timed, or where nothing is to be verified, there is none.
    """
    if spent.forward_seconds is None or not request.verify:
        return ()
    efforts = DEARER[DEARER.index(request.effort or "instant") + 1 :]
    wanted = [
        one for one in efforts if (tuning if one == "tune" else request.recipe is None)
    ]  # fmt: skip
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
        trainings = len(folds) if whole else 1  # one on two thirds of the sample for each fold, and one on all of it
        return 1 + GRADIENT * default_passes(trained, TuningOptions().batch) * trainings * trained / passages
    depth, choosing = DEPTHS[effort], len(split(passages)[0])
    weighed = min(SCREENED, choosing) + depth.steps * min(BATCH, choosing)
    return 2 + (GRADIENT * weighed + ALONE * depth.alone * choosing) / passages
