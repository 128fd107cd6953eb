"""Weighing, the search for adapters that help on a text and their coefficients at each site: requests and results.

Also results from losses alone (`ByLosses`), and scores on texts that were not used (`Unseen`); and the statistics of
adapters that some mixing methods need, each computed once from an adapter and its own sample. These are stored, and
named in recipes by the digest of their blob, so that a soup can be rebuilt by arithmetic alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from registry.names import Digest
from registry.spec.config import AdapterConfig
from registry.spec.frozen import Frozen
from registry.spec.passage import Passage
from registry.spec.structures.structure import widths_together


class StoredAdapter(Frozen):
    """The configuration of an adapter and the blob of its weights."""

    config: AdapterConfig
    blob: Digest


class WeighingRequest(Frozen):
    """A request to weigh `candidates`, which can be put side by side, on `texts`.

    They are screened on at most `screened` texts in `groups`, each with its own slopes. The best `keep` that together
    fit `max_width` get coefficients in `steps` steps of `batch` texts each. The best `alone` by the screen are also
    scored alone, and those of them that fit are mixed by these losses. With `noise` each candidate's tensors are drawn
    at random, with its mean and spread. The coefficients are evaluated on the texts `unseen`. `seed` is for all draws.
    Results of real candidates can be reused in requests of the same `owner` that screen the same adapters together;
    those `beside` the candidates are screened for that alone.
    """

    texts: tuple[Passage, ...] = Field(min_length=1)
    candidates: tuple[StoredAdapter, ...] = Field(min_length=1)
    beside: tuple[StoredAdapter, ...] = ()
    screened: int = Field(default=16, ge=1)
    groups: int = Field(default=5, ge=1)
    keep: int = Field(default=5, ge=1)
    max_width: int | None = Field(default=None, ge=1)
    steps: int = Field(default=12, ge=1)
    batch: int = Field(default=8, ge=1)
    rate: float = Field(default=0.08, gt=0)
    start: float = Field(default=0.2, gt=0)
    """The initial coefficient."""
    by_screen: bool = False
    """True if initial coefficients are proportional to the screen, with `start` as the mean or 1 as the sum."""
    alone: int = Field(default=0, ge=0)
    noise: bool = False
    unseen: tuple[Passage, ...] = ()
    max_tokens: int = Field(default=512, ge=2)
    """The length that texts are truncated to."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    owner: str = ""

    def fits(self, numbers: Sequence[int]) -> bool:
        """Return True if these candidates are at most `keep`, and at most `max_width` wide; one always fits."""
        together = widths_together(self.candidates[number].config for number in numbers)
        wide = max(together.values(), default=0)
        return len(numbers) < 2 or (len(numbers) <= self.keep and wide <= (self.max_width or wide))

    def most_that_fit(self, best: Sequence[int]) -> tuple[int, ...]:
        """The candidates, best first, without those that do not fit beside better ones."""
        fitting: tuple[int, ...] = ()
        for number in best:
            if self.fits((*fitting, number)):
                fitting = (*fitting, number)
        return fitting


class Screened(Frozen):
    """The first-order decrease in mean NLL per token that an adapter gives with a coefficient of 1.

    `standard_error` is over groups of the texts; None for a single group.
    """

    score: float
    standard_error: float | None


class ByLosses(Frozen):
    """Results from the losses of the `scored` candidates, by index, each evaluated by itself.

    `differences` are mean NLL per token, the candidate's minus the base's. `em` are their weights in the mixture of
    distributions that makes the texts most likely; the base has the rest. `greedy` are the candidates of the even
    mixture that greedy search found.
    """

    scored: tuple[int, ...]
    differences: tuple[float, ...]
    em: tuple[float, ...]
    greedy: tuple[int, ...]


class Unseen(Frozen):
    """NLL in nats, and tokens, of texts not used in weighing, under the candidates with their coefficients."""

    nll: tuple[float, ...]
    tokens: tuple[int, ...]


class Weighing(Frozen):
    """The result of weighing: the screen of each candidate, the `chosen` candidates by index, and their coefficients.

    A candidate has no screen if some value of the base model with it is not finite; it is then not weighed.
    `coefficients` has for each chosen candidate its coefficient by site. Tokens are those processed for the screen, the
    steps, and single adapters, without those of results that were reused.
    """

    screened: tuple[Screened | None, ...]
    chosen: tuple[int, ...]
    coefficients: tuple[dict[str, float], ...]
    losses: tuple[float, ...]
    """Mean NLL per token of the texts of each step, before the step."""
    screen_tokens: int
    step_tokens: int
    alone_tokens: int = 0
    by_losses: ByLosses | None = None
    unseen: Unseen | None = None


class WeighedCandidate(Frozen):
    """A candidate, its screen, and its mean coefficient if it was kept.

    `alone` is mean NLL per token on the passages that decided, the adapter alone minus the base, if it was measured.
    """

    ref: str
    digest: Digest
    domain: str
    score: float
    standard_error: float | None
    coefficient: float | None = None
    alone: float | None = None


StatisticKind = Literal["fisher", "inputs"]
"""`fisher`: the diagonal Fisher information of every value, for a token. `inputs`: the second moments of each
projection's inputs, E[x x^T] over tokens."""

MOST_PASSAGES = 64
"""Passages of a sample that a statistic is computed from."""


class StatisticRequest(Frozen):
    """The statistic of an adapter to compute on texts, each truncated to `max_tokens`; `seed` is for all draws."""

    kind: StatisticKind
    adapter: StoredAdapter
    texts: tuple[Passage, ...] = Field(min_length=1)
    max_tokens: int = Field(default=256, ge=2)
    seed: int = Field(default=0, ge=0, lt=2**32)


class MeasuredStatistic(Frozen):
    """A computed statistic: the blob of its tensors, and the numbers of passages and tokens used."""

    blob: Digest
    passages: int
    tokens: int
