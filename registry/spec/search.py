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
"""The computation that a cook may use for a sample.

`instant` computes losses only to verify, `quick` weighs candidates, `thorough` weighs more of them for longer and tries
other ways to mix them, `tune` trains the soup on the sample."""
WEIGHING: frozenset[Effort | None] = frozenset({"quick", "thorough"})
"""Efforts that weigh candidates."""
BY_GRADIENTS: frozenset[Effort | None] = frozenset({*WEIGHING, "tune"})
"""Efforts that compute gradients, and so take a budget."""
HOLDS_OUT: frozenset[Effort | None] = frozenset({"quick", "thorough", "tune"})
"""Efforts that score candidates on held-out passages: the selector does not see these, and `verify` is always on."""
Way = Literal["weighed", "em", "greedy", "recompressed", "selected", "tuned"]
"""The method that made a tried soup.

`weighed`, `em` and `greedy` concatenate candidates: with their coefficients, with the weights of a mixture of their
distributions, or by adding those that lower the loss one after another. `recompressed` is the best of these, reduced to
the width of one candidate. `selected` is the soup of the selector, or of a recipe by hand, and `tuned` the same after
training."""

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
    """The approximate maximum cost of weighing or training, estimated beforehand, in one of three units.

    `passes` are passes of the base over the sample; one with gradients counts as more than three in weighing, and as
    five in training. `tokens` are counted in the same way. `seconds` are estimated from a timed pass over some of the
    sample; the start of a process for gradients counts as five.
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
    """The cost of a cook: total `seconds`, and those of one pass of the base over the sample.

    `passes` is their ratio. Both are None if nothing was scored.
    """

    seconds: float
    forward_seconds: float | None = None
    passes: float | None = None


class Price(Frozen):
    """The estimated cost of an effort for the same sample: passes of the base over it, and seconds on this machine."""

    effort: Effort
    passes: float
    seconds: float


class NoiseControl(Frozen):
    """The gain by weighing random adapters, as a baseline, on the same held-out passages, in mean NLL.

    `difference` is noise minus the base, `ahead` the best soup minus noise: below 0 the registry's adapters help more
    than random ones with as many parameters.
    """

    difference: float
    standard_error: float
    ahead: float
    ahead_standard_error: float


class SingleBeside(Frozen):
    """A single adapter on the same held-out passages, in mean NLL: the best one by the other passages.

    `difference` is the adapter minus the base, `ahead` the best soup minus the adapter: below 0 the soup is better.
    """

    ref: str
    digest: Digest
    difference: float
    standard_error: float
    ahead: float
    ahead_standard_error: float


class Search(Frozen):
    """The record of an effort: the weighed adapters, the passages used, and the soups tried on held-out ones.

    `tokens` and `seconds` are those of the gradients, including the start of their process. For a small sample there
    are several weighings or trainings, and each passage is held out of one of them.
    """

    effort: Effort
    candidates: tuple[WeighedCandidate, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    """Adapters that were not weighed, with the reason: all that overflow, and 32 others of the pool, best-ranked first
    and unranked last."""
    more_left_out: dict[str, int] = Field(default_factory=dict)
    """The number of further adapters that were not weighed, by reason."""
    trials: tuple[Trial, ...]
    decided_on: int
    """Passages used for weights or steps of training."""
    held_out: int
    """Passages used for the trials."""
    tokens: int
    seconds: float
    single: SingleBeside | None = None
    """None if nothing was weighed, or if the soup is that adapter."""
    noise: NoiseControl | None = None
    tuning: TuningReport | None = None
