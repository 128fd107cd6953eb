"""Candidates: soups that could be the answer of a cook, and their plans without each fold of held-out passages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from registry.cook.mix import Mixed, MixPlan
from registry.spec import Search, Way, WeighingRequest


@dataclass(frozen=True)
class Scores:
    """NLL in nats and token counts of passages: two arrays (passages,)."""

    nll: np.ndarray
    tokens: np.ndarray


@dataclass(frozen=True)
class TrainedSoup:
    """A soup that training made, and its scores on the held-out passages by states that have not seen them."""

    soup: Mixed
    scores: Scores
    is_start: bool = False
    """True where training kept its start: then it is reported, and no answer by itself."""


@dataclass(frozen=True)
class Candidate:
    """A soup that could be the answer: its ingredients, weights and mixing method are its `plan`.

    `fold_plans` has, for each fold of held-out passages, the plan made in the same way without them. It has None for a
    fold without a soup, for which the base model is used. It is empty if the plan itself has seen no held-out passage.
    """

    way: Way | Literal["single"]
    plan: MixPlan
    fold_plans: tuple[MixPlan | None, ...] = ()
    trained: TrainedSoup | None = None

    def narrowed(self) -> Candidate | None:
        """This candidate with narrowed plans (`MixPlan.narrowed`); None if its plan cannot be narrowed."""
        plan = self.plan.narrowed()
        if plan is None:
            return None
        fold_plans = tuple(None if fold is None else fold.narrowed() or fold for fold in self.fold_plans)
        return Candidate("recompressed", plan, fold_plans)


@dataclass(frozen=True)
class Proposal:
    """The candidates of a strategy.

    `search` reports on the work, without trials. If it is None, nothing was held out: there is one candidate, scored
    on the sample that chose it. Several candidates need a search and an effort in `HOLDS_OUT`.
    `single` is the best single adapter, scored beside them. `noise` are weighings of random adapters, one a fold,
    where the request asks for that control. `base` has the base model's scores of the held-out passages where the
    strategy has computed them.
    """

    candidates: tuple[Candidate, ...]
    search: Search | None = None
    single: Candidate | None = None
    noise: tuple[WeighingRequest, ...] = ()
    base: Scores | None = None
