"""What is asked of and found by weighing: which of some adapters help on a text, and by how much at each site.

Beside it what their losses alone say (`ByLosses`), and how the same would do with adapters of noise (`Unseen`).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from registry.names import Digest
from registry.spec.config import AdapterConfig
from registry.spec.frozen import Frozen
from registry.spec.structures.structure import widths_together


class StoredAdapter(Frozen):
    """An adapter by its configuration and the blob of its weights."""

    config: AdapterConfig
    blob: Digest


class WeighingRequest(Frozen):
    """Weigh `candidates`, which can be put side by side, on `texts`.

    They are screened on at most `screened` texts in `parts`, each with slopes of its own; the best `keep` that fit
    `max_width` side by side are given coefficients in `steps` steps of `batch` texts each. The best `alone` by the
    screen are scored by themselves too, and those of them that fit are mixed by what that says. With `noise` each
    candidate's tensors are drawn anew, with the mean and the spread of its own. What comes of the coefficients is tried
    on the texts `unseen`. All draws are by `seed`. What was found of real candidates may be used again in requests of
    the same `owner`, where the same adapters are screened together: those `beside` the candidates are for that alone.
    """

    texts: tuple[str, ...] = Field(min_length=1)
    candidates: tuple[StoredAdapter, ...] = Field(min_length=1)
    beside: tuple[StoredAdapter, ...] = ()
    screened: int = Field(default=30, ge=1)
    parts: int = Field(default=5, ge=1)
    keep: int = Field(default=5, ge=1)
    max_width: int | None = Field(default=None, ge=1)
    steps: int = Field(default=12, ge=1)
    batch: int = Field(default=8, ge=1)
    rate: float = Field(default=0.08, gt=0)
    start: float = Field(default=0.2, gt=0)
    """The coefficient that those that are kept start with."""
    by_screen: bool = False
    """Whether they start in the proportions of the screen instead, with `start` as the mean or 1 as the sum."""
    alone: int = Field(default=0, ge=0)
    noise: bool = False
    unseen: tuple[str, ...] = ()
    max_tokens: int = Field(default=512, ge=2)
    """Tokens of a text that are looked at."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    owner: str = ""

    def fits(self, numbers: Sequence[int]) -> bool:
        """Whether these candidates are no more than `keep`, and no wider than `max_width`; one by itself always is."""
        together = widths_together(self.candidates[number].config for number in numbers)
        wide = max(together.values(), default=0)
        return len(numbers) < 2 or (len(numbers) <= self.keep and wide <= (self.max_width or wide))

    def most_that_fit(self, best: Sequence[int]) -> tuple[int, ...]:
        """Candidates, best first, without those that do not fit beside the better ones."""
        taken: tuple[int, ...] = ()
        for number in best:
            if self.fits((*taken, number)):
                taken = (*taken, number)
        return taken


class Screened(Frozen):
    """What an adapter adds to the base at once: the fall of mean NLL per token for a coefficient of 1, to first order.

    `standard_error` is over parts of the texts; None where there is one part.
    """

    score: float
    standard_error: float | None


class ByLosses(Frozen):
    """What the losses of some candidates say, each scored by itself; candidates are called by their number.

    `differences` are mean NLL per token, the candidate's minus the base's. `em` are the weights, of those that were
    `scored`, in the mixture of distributions that makes the texts most likely; what they lack of 1 is the base's.
    `greedy` is the even mixture that adding one after another came to.
    """

    scored: tuple[int, ...]
    differences: tuple[float, ...]
    em: tuple[float, ...]
    greedy: tuple[int, ...]


class Unseen(Frozen):
    """NLL in nats of texts that had no part in weighing, under the candidates with their coefficients; their tokens."""

    nll: tuple[float, ...]
    tokens: tuple[int, ...]


class Weighing(Frozen):
    """What was found: a screen of every candidate, those that were kept (by their number), and their coefficients.

    `coefficients` has for each of those that were kept its coefficient by site. Tokens are those that this took:
    for the screen, for the steps, and of each adapter by itself; what was known from before is not among them.
    """

    screened: tuple[Screened, ...]
    kept: tuple[int, ...]
    coefficients: tuple[dict[str, float], ...]
    losses: tuple[float, ...]
    """Mean NLL per token of each step's texts, before the step."""
    screen_tokens: int
    step_tokens: int
    alone_tokens: int = 0
    by_losses: ByLosses | None = None
    unseen: Unseen | None = None


class WeighedCandidate(Frozen):
    """An adapter that was looked at, its screen, and its mean coefficient where it was kept.

    `alone` is mean NLL per token on the passages that decided, the adapter by itself minus the base, where that was
    looked at.
    """

    ref: str
    digest: Digest
    domain: str
    score: float
    standard_error: float | None
    coefficient: float | None = None
    alone: float | None = None
