"""The value that every step of a cook receives: the request, its sample, its base model, and where it computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from registry.adapters.loadable import LoadableAdapter
from registry.context import BaseModel, Caller, Registry
from registry.cook.sample import Sample
from registry.cook.timed import PassTimer
from registry.mixing.compat import SoupIngredient
from registry.progress import Progress
from registry.select.select import Chosen, Fit
from registry.spec import (
    BaseEntry,
    CookRequest,
    MeasuredStatistic,
    Passage,
    PassageScore,
    StatisticRequest,
    Tuned,
    TuningRequest,
    Weighing,
    WeighingRequest,
)

STEPS = 4
"""Steps of a cook's progress: read the sample, choose or weigh, mix or train, verify."""


@dataclass(frozen=True)
class Computations:
    """Functions that run where pools are fitted and gradients computed; the last three take the base model's entry."""

    fit: Fit
    weigh: Callable[[BaseEntry, WeighingRequest], Weighing]
    tune: Callable[[BaseEntry, TuningRequest], Tuned]
    measure: Callable[[BaseEntry, StatisticRequest], MeasuredStatistic]


@dataclass(frozen=True)
class CookJob:
    """One cook.

    `ingredients` are those of the recipe or, once the selector was asked, those it selected (`selection`). Without a
    recipe there is a sample. `namespace` takes a soup without a name.
    """

    registry: Registry
    caller: Caller
    request: CookRequest
    base: BaseModel
    timer: PassTimer
    sample: Sample | None
    ingredients: tuple[SoupIngredient, ...]
    namespace: str
    computations: Computations
    progress: Progress
    selection: Chosen | None = None

    @property
    def texts(self) -> tuple[Passage, ...]:
        """The passages of the sample; none without a sample, or with one of vectors."""
        return () if self.sample is None else self.sample.texts

    def score(self, texts: Sequence[Passage], adapter: LoadableAdapter | None) -> Sequence[PassageScore]:
        """Log-likelihoods of texts under the base model, with or without an adapter; timed."""
        began = time.perf_counter()
        scores = self.base.score(texts, adapter, progress=self.progress)
        self.timer.add(time.perf_counter() - began, texts)
        return scores

    def report(self, step: int, message: str) -> None:
        """Report progress; raises Cancelled where the job was cancelled."""
        self.progress(step, STEPS, message)
