"""Prices of efforts, how far they go within a budget, and what efforts gained in past cooks.

Work is counted in passes of the base model over the sample, and in seconds once `cook` has timed one (`PassTimer`). A
pass with gradients counts as several passes, and each attached adapter adds to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from registry.catalogue.database import Database
from registry.catalogue.rows import Namespaces
from registry.cook.job import CookJob
from registry.cook.sample import FEW, Split
from registry.errors import InvalidParameter
from registry.spec import MAX_INGREDIENTS, Budget, Passage, WeighingRequest, characters_of

LEAST_SCREENED, LEAST_STEPS, LEAST_ALONE = 5, 4, 3
"""The minimum that a budget leaves of weighing. If fewer than LEAST_ALONE adapters could be scored alone, none are."""
TRAINING_PASSES = 3
"""Default maximum of passes of a training; held-out passages decide how many the result is trained for."""
NEWEST = 500
"""Past cooks on a base model whose gains count."""
GRADIENT, AN_ADAPTER = 3.2, 0.06
"""Passes of the base that a pass with its gradients takes, and what each adapter that is attached adds."""
TRAINING = 5.0
"""Passes of the base that a pass of training takes: of a LoRA in all linear modules, others take less."""
ALONE = 1.2
"""Passes of the base that a pass with one adapter takes."""
GREEDY = 6
"""Passes over the texts that the greedy search takes."""
START_SECONDS = 5.0
"""Seconds until the process that computes gradients has loaded a small base model."""
ROUNDING = 1e-9
TIMED = 8
"""Passages that are scored to time a pass, if a budget is in seconds or tokens."""
SCREENED, GROUPS = (int(WeighingRequest.model_fields[name].default) for name in ("screened", "groups"))


@dataclass(frozen=True)
class Depth:
    """How far weighing goes: `steps` for the coefficients of at most `members`, and how many are scored `alone`.

    A step takes `most_texts`, or fewer if all steps together would otherwise read each text more than about `turns`
    times. `trials` is the approximate number of soups that are tried on held-out passages.
    """

    members: int
    steps: int
    most_texts: int
    turns: int
    alone: int
    trials: int

    def batch(self, texts: int) -> int:
        """Texts of a step, for this number of texts."""
        return max(1, min(self.most_texts, self.turns * texts // self.steps))

    def steps_over(self, texts: int) -> int:
        """Number of steps for this number of texts."""
        batch = self.batch(texts)
        return self.steps if batch == self.most_texts else max(LEAST_STEPS, round(self.turns * texts / batch))


@dataclass(frozen=True)
class Size:
    """The size of the weighing: the texts of each weighing; the first has all texts of the others.

    The others reuse the first one's scores by text and adapter (`training.score_cache`).
    """

    texts: tuple[int, ...]
    passages: int
    candidates: int

    @classmethod
    def of(cls, split: Split, candidates: int) -> Size:
        """The size of a weighing, for a split of the sample and a number of candidates."""
        texts = [split.count - len(fold) for fold in split.folds]
        return cls((*[split.count] * split.fits_all, *texts), split.count, candidates)


@dataclass(frozen=True)
class Cut:
    """The remaining depth of a weighing: passages that are screened, steps, and adapters scored by themselves."""

    screened: int
    steps: int
    alone: int


# --- prices ----------------------------------------------------------------------------------------


def weighing_passes(depth: Depth, passages: int, candidates: int) -> float:
    """About how many passes of the base over a sample weighing takes, with its trials and the selector's embedding."""
    split = Split.of(passages)
    cut = Cut(SCREENED, depth.steps, min(depth.alone, candidates))
    trials = len(split.held_out) / passages * depth.trials
    return 1 + trials + _weighing(depth, Size.of(split, candidates), cut)


def tuning_passes(passages: int) -> float:
    """About how many passes of the base over a sample a training takes with its defaults.

    One pass is best most often: the training ends after a second pass that is no better.
    """
    split = Split.of(passages)
    scored = len(split.held_out) / passages * 4
    return 1 + scored + TRAINING * (2 * _fold_shares(split) + 1)


def screening_groups(texts: int) -> int:
    """Groups in which texts are screened: each text is its own group if there are few, since other passages are held
    out each time.
    """
    return texts if texts < FEW else GROUPS


def _weighing(depth: Depth, size: Size, cut: Cut) -> float:
    """Passes of the base that weighing takes, so far as it is cut."""
    screened = min(cut.screened, size.texts[0])
    stepped = sum(min(cut.steps, depth.steps_over(texts)) * depth.batch(texts) for texts in size.texts)
    screening, stepping = (
        GRADIENT + AN_ADAPTER * min(most, size.candidates) for most in (MAX_INGREDIENTS, depth.members)
    )
    alone = ALONE * scored_by_losses(cut.alone, size.texts)
    return (screening * screened + stepping * stepped + alone) / size.passages


def scored_by_losses(alone: int, texts: Sequence[int]) -> int:
    """Passages that are scored for the mixtures by losses: by the base and each adapter alone, and by greedy search.

    The first of the `texts` of several weighings are all that there are.
    """
    return (alone + 1) * texts[0] + GREEDY * sum(texts) if alone else 0


def _training(passages: int) -> float:
    """Passes of the base that one pass of all trainings takes: without each fold, and on the whole sample."""
    return TRAINING * (_fold_shares(Split.of(passages)) + 1)


def _fold_shares(split: Split) -> float:
    """The passages that the trainings of all folds read in a pass, as a multiple of the sample."""
    return sum(split.count - len(fold) for fold in split.folds) / split.count


# --- budgets ---------------------------------------------------------------------------------------


def passes_within(budget: Budget, job: CookJob, texts: Sequence[Passage]) -> float:
    """The passes of the base over the texts that a budget allows; may score some texts to time a pass."""
    if budget.passes is not None:
        return budget.passes
    timed = texts[:TIMED]
    scores = job.score(timed, None)
    share = characters_of(timed) / characters_of(texts)
    if budget.tokens is not None:
        return budget.tokens * share / max(1, sum(score.tokens for score in scores))
    forward = job.timer.spent(texts).forward_seconds or 0.0
    return max(0.0, (budget.seconds or 0.0) - START_SECONDS) / max(forward, 1e-6)


def cut_weighing(depth: Depth, size: Size, passes: float) -> Cut:
    """The part of a depth that fits, everything cut alike; raises InvalidParameter where that is too little."""
    whole = Cut(min(SCREENED, size.texts[0]), depth.steps, min(depth.alone, size.candidates))
    price = _weighing(depth, size, whole)
    if passes >= price:
        return whole
    least = Cut(min(LEAST_SCREENED, size.texts[0]), LEAST_STEPS, 0)
    least_price = _weighing(depth, size, least)
    if passes < least_price - ROUNDING:
        raise _too_small(passes, least_price)
    share = passes / price
    alone, screened = math.floor(whole.alone * share), max(least.screened, math.floor(whole.screened * share))
    cuts = [Cut(screened, LEAST_STEPS, alone if alone >= LEAST_ALONE else 0), Cut(screened, LEAST_STEPS, 0)]
    cut = next((cut for cut in cuts if _weighing(depth, size, cut) <= passes), least)
    longer = [replace(cut, steps=steps) for steps in range(LEAST_STEPS, depth.steps + 1)]
    fitting = [cut for cut in longer if _weighing(depth, size, cut) <= passes]
    return fitting[-1] if fitting else cut


def cut_training(planned: int, passes: float, passages: int) -> int:
    """The planned passes of training that fit; raises InvalidParameter where not one does."""
    price = _training(passages)
    fitting = math.floor(passes / price + ROUNDING)
    if not fitting:
        raise _too_small(passes, price)
    return min(planned, fitting)


def _too_small(passes: float, least: float) -> InvalidParameter:
    """The error that names the least budget, rounded up so that it is accepted."""
    allowed, needed = math.floor(passes * 10) / 10, math.ceil(least * 10 - ROUNDING) / 10
    return InvalidParameter(
        f"The budget allows {allowed:.1f} passes of the base over the sample, and this effort takes at least "
        f"{needed:.1f}: allow more, or choose a smaller effort.",
        param="budget",
    )


def past_gains(database: Database, base_model: str, visible: Namespaces) -> dict[str, tuple[float, int]]:
    """(median gain in nats per token, number of cooks) of each effort over the newest visible cooks on a base model.

    A cook's gain is the NLL of the soup as selected minus that of the stored soup, on held-out passages.
    """
    with database.read() as catalogue:
        cooks = catalogue.soups.past_trials(base_model, visible, most=NEWEST)
    gains: dict[str, list[float]] = {}
    for effort, trials, difference in cooks:
        selected = next((trial["difference"] for trial in trials if trial["way"] == "selected"), None)
        if selected is not None:
            gains.setdefault(effort, []).append(selected - difference)
    return {effort: (median(values), len(values)) for effort, values in gains.items()}
