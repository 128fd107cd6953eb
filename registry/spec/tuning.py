"""Tuning, the training of a soup on the sample that it is cooked for: options, requests, results and reports.

A tuned soup has learnt from the sample. Its recipe records this (`Tuning`), and the recipe and the sample's text
together determine its bytes, up to rounding.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from registry.names import Digest
from registry.spec.decimals import UpToOne
from registry.spec.frozen import Frozen
from registry.spec.mixing import not_set
from registry.spec.passage import Passage
from registry.spec.weighing import StoredAdapter

MIN_TUNING_TOKENS = 400
"""The fewest tokens of a sample that can be trained on."""

TuningSetting = Literal["forbid", "allow", "default"]
"""The permission to tune soups in a namespace.

`default`: requests that name no effort, selector or recipe are cooked with effort `tune`, whatever the server's default
is."""

TargetModules = Literal["pool", "all-linear"]
"""The modules of a LoRA that are trained: those of the pool's adapters, or every linear module of the layers."""


class TuningOptions(Frozen):
    """Options of the training of a soup on a sample.

    There are at most `passes` over the training passages, by default 3, in steps of `batch` passages. Held-out passages
    decide how many of them are best; the result is trained on all passages for as many, or is the start. `rate` is the
    learning rate of AdamW: by default 0.005, 0.003 for a sample of fewer than 59 passages and 0.001 for fewer than 30.
    For LoRAs in all linear modules it is 0.002, and 0.001 for fewer than 30.
    """

    passes: int | None = Field(default=None, ge=1, le=50)
    rate: UpToOne | None = None
    batch: int = Field(default=1, ge=1, le=64)
    max_tokens: int = Field(default=512, ge=2, le=65536)
    """Tokens of a passage that are trained on, and that a held-out one is scored on."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    target_modules: TargetModules = "all-linear"
    """Modules that a soup of LoRAs changes: `all-linear` adds the linear modules that the pool's LoRAs leave out, at
    their largest rank; the soup is then larger than its ingredients. Other structures keep theirs."""


class Tuning(Frozen):
    """The training of a recipe's mixture: everything that determines the result, except the sample's text.

    Constants of `training.tuning` (warm-up, clipping, no weight decay) affect the result too. A constant that changes
    becomes a field here, so that earlier recipes keep their digests and bytes.
    """

    sample: Digest
    passes: int
    rate: UpToOne
    batch: int
    max_tokens: int
    seed: int
    dtype: str
    """The base model's."""
    bos: Literal[False] | None = Field(default=None, exclude_if=not_set)
    """False if the list of base models has `bos = false`. Older recipes do not record it."""
    target_modules: Literal["all-linear"] | None = Field(default=None, exclude_if=not_set)
    on_all_passages: Literal[True] | None = Field(default=None, exclude_if=not_set)
    """None in older recipes: their result was trained without the fold, if there was one."""


class TuningRequest(Frozen):
    """A request to train `start` on `texts`; each of `folds` has the indices of texts that are held out together.

    There is one training for each fold, on the other texts, and then one on all texts, whose result is stored.
    """

    texts: tuple[Passage, ...] = Field(min_length=1)
    start: StoredAdapter
    folds: tuple[tuple[int, ...], ...] = Field(min_length=1)
    passes: int = Field(ge=1)
    rate: UpToOne
    batch: int = Field(ge=1)
    max_tokens: int = Field(ge=2)
    seed: int = Field(ge=0, lt=2**32)


class Tuned(Frozen):
    """The result of a training.

    `held_out` are the indices of the scored texts, each scored by the training without it, and `tokens` their scored
    tokens. `base_nll` is their NLL under the base in nats, which took `base_seconds`. `nll` has their NLL under the
    adapter, at the start and after each pass; `trained_nll` has for each pass the mean NLL per token of the training
    texts. `best_pass` is the best number of passes, and `blob` stores the state after as many over all texts: 0
    and None for the start.
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
    """The report of a training: the most passes over the training passages, and the number that was best (`kept`).

    `losses` are mean NLL per token of the held-out passages, for the start and after each pass; there are fewer than
    `passes` if a training ended early. `trained_losses` are those of the training passages, over each of these passes
    and all trainings; older soups have none.
    """

    passes: int
    kept: int
    rate: UpToOne
    losses: tuple[float, ...]
    trained_losses: tuple[float, ...] = ()
    trainings: int
    """Number of trainings: one for each fold, and one on all passages unless the start was best."""
