"""The value that every step of a cook receives: the request, its sample, its base model, and where it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from registry.context import Caller, Registry
from registry.cook.sample import Sample
from registry.cook.timed import TimedBase
from registry.mixing.compat import SoupIngredient
from registry.progress import Progress
from registry.select.select import Chosen, Fit
from registry.spec import (
    CookRequest,
    MeasuredStatistic,
    Passage,
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
    """Functions that run where pools are fitted and gradients computed; the last three take the base model's id."""

    fit: Fit
    weigh: Callable[[str, WeighingRequest], Weighing]
    tune: Callable[[str, TuningRequest], Tuned]
    measure: Callable[[str, StatisticRequest], MeasuredStatistic]


@dataclass(frozen=True)
class CookJob:
    """One cook.

    `ingredients` are those of the recipe or, once the selector was asked, those it selected (`selection`). Without a
    recipe there is a sample. `namespace` takes a soup without a name.
    """

    registry: Registry
    caller: Caller
    request: CookRequest
    base: TimedBase
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

    def report(self, step: int, message: str) -> None:
        """Report progress; raises Cancelled where the job was cancelled."""
        self.progress(step, STEPS, message)
