"""Efforts of a cook, and the record of the soups it tried."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from registry.names import Digest
from registry.spec.frozen import Frozen
from registry.spec.selection import LeftOut
from registry.spec.tuning import TuningReport
from registry.spec.weighing import WeighedCandidate

Effort = Literal["instant", "quick", "thorough", "tune"]
"""How much a cook may spend on a sample.

`instant` computes losses only to verify, `quick` weighs candidates, `thorough` weighs more of them for longer and tries
other ways to mix them, `tune` trains the soup on the sample.
"""
WEIGHING: frozenset[Effort | None] = frozenset({"quick", "thorough"})
"""Efforts that weigh candidates."""
BY_GRADIENTS: frozenset[Effort | None] = frozenset({*WEIGHING, "tune"})
"""Efforts that compute gradients, and so take a budget."""
HOLDS_OUT: frozenset[Effort | None] = frozenset({"quick", "thorough", "tune"})
"""Efforts that hold passages out to score candidates on: the selector does not see these, and `verify` is always on."""
Way = Literal["weighed", "em", "greedy", "recompressed", "selected", "tuned"]
"""How a soup that is tried was made.

`weighed`, `em` and `greedy` put candidates side by side: with their coefficients, with the weights of a mixture of
their distributions, or those that lower the loss one after another. `recompressed` is the best of these, as narrow as
one candidate; `selected` that of the selector, or of a recipe by hand, and `tuned` the same after training.
"""

WAYS: dict[Way, str] = {
    "weighed": "The weighed soup",
    "em": "The soup by a mixture of distributions",
    "greedy": "The soup by greedy search",
    "recompressed": "The soup at the width of one adapter",
    "selected": "The soup as selected",
    "tuned": "The tuned soup",
}
"""The soup of each way as the subject of a sentence."""


class Trial(Frozen):
    """One way of making a soup, tried on passages that had no part in making it.

    `difference` is mean NLL per token, the soup minus the base; negative is better.
    """

    way: Way
    members: int
    width: int
    difference: float
    standard_error: float


class Budget(Frozen):
    """About the most that weighing or training may take, estimated beforehand; one of the three.

    `passes` of the base over the sample, one with gradients counting as more than three; `tokens` alike; `seconds`
    as a pass over some of the sample is timed, the start of a process for gradients counting as five.
    """

    passes: float | None = Field(default=None, gt=0, le=10_000)
    tokens: int | None = Field(default=None, gt=0, le=10**12)
    seconds: float | None = Field(default=None, gt=0, le=10**6)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if [self.passes, self.tokens, self.seconds].count(None) != 2:
            raise ValueError("give one of 'passes', 'tokens' and 'seconds'")
        return self


class Spent(Frozen):
    """What a cook took: `seconds` of all of it, and one pass of the base over the sample, as timed on the way.

    `passes` is the one over the other. Both are None where nothing was scored.
    """

    seconds: float
    forward_seconds: float | None = None
    passes: float | None = None


class Price(Frozen):
    """About what an effort would take for the same sample: passes of the base over it, and seconds on this machine."""

    effort: Effort
    passes: float
    seconds: float


class NoiseControl(Frozen):
    """What weighing gets out of adapters of noise, which know nothing: on the same held-out passages, in mean NLL.

    `difference` is noise minus the base, `ahead` the best soup minus noise: below 0 the registry's adapters bring more
    than as many parameters would.
    """

    difference: float
    standard_error: float
    ahead: float
    ahead_standard_error: float


class SingleBeside(Frozen):
    """One adapter by itself, on the same held-out passages, in mean NLL: the best as far as the others say.

    `difference` is the adapter minus the base, `ahead` the best soup minus the adapter: below 0 the soup is better.
    """

    ref: str
    digest: Digest
    difference: float
    standard_error: float
    ahead: float
    ahead_standard_error: float


class Search(Frozen):
    """What an effort did: who was looked at on how much of the sample, and what was tried on the rest of it.

    `tokens` are those that gradients were taken over; `seconds` of that include starting the process where it
    was not there. Where a sample is small there are several weighings or trainings, and each passage is held out of one
    of them.
    """

    effort: Effort
    candidates: tuple[WeighedCandidate, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    """Adapters of the pool that were not weighed, and why: the 32 ranked best."""
    more_left_out: dict[str, int] = Field(default_factory=dict)
    """How many more were not, by reason."""
    trials: tuple[Trial, ...]
    decided_on: int
    """Passages that weights or steps of training came from."""
    held_out: int
    """Passages that the trials are on."""
    tokens: int
    seconds: float
    single: SingleBeside | None = None
    """None where nothing was weighed, or where the soup is that adapter."""
    noise: NoiseControl | None = None
    tuning: TuningReport | None = None
