"""Tuning, the training of a soup on the sample that it is cooked for: options, requests, results and reports.

A tuned soup has learnt from the sample. Its recipe says so (`Tuning`), and its bytes are determined by the recipe and
the sample's text together, up to rounding.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from registry.names import Digest
from registry.spec.decimals import UpToOne
from registry.spec.frozen import Frozen
from registry.spec.passage import Passage
from registry.spec.weighing import StoredAdapter

TuningSetting = Literal["forbid", "allow", "default"]
"""Whether soups may be tuned in a namespace.

`default`: requests that are to be verified and name no effort, selector or recipe are cooked with effort `tune`.
"""


class TuningOptions(Frozen):
    """How a soup is trained on a sample; what is left out follows from how many passages there are.

    Of `passes` over the training passages, each in steps of `batch` of them, the state after the best is kept, or the
    start. By default there are as many passes as make 48 steps, at least 2 and at most 6. `rate` is AdamW's: by default
    0.005, 0.003 for fewer than 48 passages and 0.001 for fewer than 24.
    """

    passes: int | None = Field(default=None, ge=1, le=50)
    rate: UpToOne | None = None
    batch: int = Field(default=1, ge=1, le=64)
    max_tokens: int = Field(default=512, ge=2, le=65536)
    """Tokens of a passage that are trained on, and that a held-out one is scored on."""
    seed: int = Field(default=0, ge=0, lt=2**32)


class Tuning(Frozen):
    """The training that a recipe's mixture went through: all that decides it beside the sample's text.

    Constants of `training.tuning` (warm-up, clipping, no weight decay) decide it too: one that changes becomes a field
    here, so that recipes of before keep their digests and their bytes.
    """

    sample: Digest
    passes: int
    rate: UpToOne
    batch: int
    max_tokens: int
    seed: int
    dtype: str
    """The base model's."""


class TuningRequest(Frozen):
    """A request to train `start` on `texts`; each of `folds` has the indices of texts that are held out together.

    There is one training for each fold, on the other texts. With `whole` another on all texts follows, whose result is
    stored; without, there is one fold, and the result of its training is stored.
    """

    texts: tuple[Passage, ...] = Field(min_length=1)
    start: StoredAdapter
    folds: tuple[tuple[int, ...], ...] = Field(min_length=1)
    whole: bool
    passes: int = Field(ge=1)
    rate: UpToOne
    batch: int = Field(ge=1)
    max_tokens: int = Field(ge=2)
    seed: int = Field(ge=0, lt=2**32)


class Tuned(Frozen):
    """The result of a training.

    `held_out` are the indices of the scored texts, each by the training without it, `tokens` their tokens that were
    scored, and `base_nll` their NLL under the base in nats, which took `base_seconds`. `nll` has their NLL under the
    adapter, at the start and after each pass; `trained_nll` has for each pass the mean NLL per token of the training
    texts. `best_pass` is the pass whose state is stored in `blob`, 0 and None for the start.
    """

    held_out: tuple[int, ...]
    tokens: tuple[int, ...]
    base_nll: tuple[float, ...]
    nll: tuple[tuple[float, ...], ...]
    trained_nll: tuple[float, ...] = ()
    best_pass: int
    blob: Digest | None
    trained_tokens: int
    base_seconds: float = 0.0


class TuningReport(Frozen):
    """What an answer says of a training: passes over the training passages, and the pass whose state was kept.

    `losses` are mean NLL per token of the held-out passages, for the start and after each pass; there are fewer than
    `passes` where a training ended early. `trained_losses` are those of the passages that were trained on, over each of
    these passes and all trainings; soups that were tuned before it was kept have none.
    """

    passes: int
    kept: int
    rate: UpToOne
    losses: tuple[float, ...]
    trained_losses: tuple[float, ...] = ()
    trainings: int
    """One for each fold, and where there are several another on all passages."""
