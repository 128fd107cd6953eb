"""A cell of the experiment: one training and its measurements, as a value. Torch-free.

Called by the plan, which makes them, by the runner, which keeps results by `Cell.key`, and by `work`, which runs one. A
cell has everything that its numbers depend on, including the digests of its texts and of the base model.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from registry.names import Digest, digest_of
from registry.spec import AdapterConfig, BankConfig, Frozen
from training.hyperparameters import Consistency, Hyperparameters, PruningOptions

VERSION = 1
"""Version of how cells are run; a new version discards all stored results."""
Measure = Literal["test", "spans", "routing"]
"""NLL of the test passages; the same without the adapters of every span of layers; with random routes of a bank."""
Trains = Literal["nothing", "adapter", "all", "top", "norms"]
BACKWARD = {"snip": 1, "grasp": 3}
"""Passes of training that a score takes for each of its batches; GraSP's second derivative counts as two more."""


class Data(Frozen):
    """The texts of a domain that a size of the experiment draws: how many of each part, and the digest of them all."""

    domain: str
    tenth: bool
    """True for a tenth of the size's training texts."""
    texts: int
    valid_texts: int
    test_texts: int
    digest: Digest


class Cell(Frozen):
    """One training and its measurements."""

    variant: str
    data: Data
    seed: int
    """Of the initial tensors and of the order of the data."""
    trains: Trains
    layers: int = 0
    """How many of the last ones, where `trains` is "top"."""
    config: AdapterConfig | None = None
    init: Literal["near_identity", "small_b"] = "near_identity"
    std: float | None = None
    """Standard deviation of the initial projections, where it is not that of `init`."""
    consistency: Consistency | None = None
    pruning: PruningOptions | None = None
    members: tuple[Digest, ...] = ()
    """Keys of the cells whose adapters a fusion is over."""
    recipe: Hyperparameters
    window: int
    """Tokens of a test passage that are scored at a time; a prefix needs room beside them."""
    measures: tuple[Measure, ...] = ()
    span_texts: int = 0
    """How many of the test passages the spans are scored on."""
    draws: int = 0
    """How many times each test passage is scored with random routes."""
    keeps: bool = False
    """True to store the adapter, as a member of a fusion."""
    base: Digest
    version: int = Field(default=VERSION)

    @property
    def key(self) -> str:
        """The digest that its result is kept under."""
        return digest_of(self)

    @property
    def training_tokens(self) -> int:
        """Tokens of forward and backward passes; a bank's two passes of a step count twice."""
        if self.trains == "nothing":
            return 0
        recipe = self.recipe
        passes = 2 if isinstance(self.config, BankConfig) and self.consistency != "none" else 1
        pruning = 0 if self.pruning is None else BACKWARD.get(self.pruning.score, 0) * self.pruning.batches
        return (recipe.steps * recipe.accumulate * passes + pruning) * recipe.batch * recipe.block
