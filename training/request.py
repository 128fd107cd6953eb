"""Requests for a training: one for a server (`TrainingRequest`), one on local files (`TrainingRun`). No torch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from registry.errors import Conflict, SoupError
from registry.formats import AdapterDirectory, check_place, read_directory
from registry.names import Digest
from registry.spec import BaseId, Card, CookRequest, Frozen, HandRecipe, MergeMixing, NewCard, Owner, WeightedRef, Words
from training.spec import BANK, SAMPLE, SAVE_SECONDS, VALID_SHARE, TrainingSpec


class TrainingRequest(Frozen):
    """Train an adapter on uploaded data, and push it as `name`.

    `texts` and `valid` are blobs of JSON lines as the task has them, {"text"} for language modelling. Without `valid`
    a share of `texts` is held out to find the best state by. A fusion's members are adapters by name or digest. With
    `adamix` the bank of experts is pushed as `name` and "-bank", and its merge as `name`.
    """

    name: str = Field(max_length=129)
    domain: Words = Field(min_length=1, max_length=200)
    base_model: BaseId
    texts: Digest
    valid: Digest | None = None
    valid_share: float | None = Field(default=None, gt=0, lt=1)
    spec: TrainingSpec = TrainingSpec()
    sample: int = Field(default=SAMPLE, ge=0, le=10_000)
    """Training passages that become the adapter's sample; 0 for none."""
    card: NewCard = Card()
    owner: Owner | None = None
    """Who answers for the names that are pushed; without it each keeps the one it has. No part of the training: a
    request that differs in it alone is the same one."""

    @model_validator(mode="after")
    def _validated_on_one(self) -> Self:
        if self.valid is not None and self.valid_share is not None:
            raise ValueError("give 'valid' (a blob) or 'valid_share', not both")
        return self

    @property
    def share(self) -> float:
        """The share of the data to validate on where no other data are given."""
        return VALID_SHARE if self.valid_share is None else self.valid_share


def merge_request(bank: str, *, name: str, owner: str | None = None) -> CookRequest:
    """The request that cooks the merge of a bank of experts, given by its ref, as `name` owned by `owner`."""
    recipe = HandRecipe(ingredients=(WeightedRef(ref=bank),))
    return CookRequest(recipe=recipe, mixing=MergeMixing(), name=name, owner=owner, verify=False)


class TrainingRun(Frozen):
    """A training on local files: spec, data, and the places of its results.

    Without `valid` a share of the items of `train` is held out. `called` are the names of the two files in messages.
    Members of a fusion are the directories in the spec, or `members` instead.
    """

    spec: TrainingSpec
    train: Path
    valid: Path | None = None
    valid_share: float = Field(default=VALID_SHARE, gt=0, lt=1)
    called: tuple[str, str] | None = None
    members: tuple[Path, ...] = ()
    out: Path
    replace: bool = False
    domain: Words = Field(min_length=1, max_length=200)
    base_id: str | None = None
    sample: int = Field(default=SAMPLE, ge=0)
    sample_seed: int = 0
    checkpoint: Path | None = None
    losses: Path | None = None
    every_steps: int | None = None
    every_seconds: float | None = SAVE_SECONDS

    @property
    def bank(self) -> Path:
        """The directory of the bank of experts, if there is one."""
        return self.out.with_name(self.out.name + BANK)

    def existing_bank(self, *, advice: str = "remove it") -> AdapterDirectory | None:
        """Read the bank of experts already in this training's place, if any; raises Conflict if it is no bank.

        `advice` is the suggestion in the message beside choosing another place.
        """
        try:
            check_place(self.bank, replace=False, advice=advice)
        except Conflict:
            with suppress(SoupError):
                folder = read_directory(self.bank)
                if folder.config.merged is not None:
                    return folder
            raise
        return None
