"""The body of `POST /v1/trainings`, which the client builds and the route reads. Never imports torch."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from registry.names import Digest
from registry.spec import Card, Frozen, Words
from training.spec import SAMPLE, VALID_SHARE, TrainingSpec


class TrainingRequest(Frozen):
    """Train an adapter on uploaded data, and push it as `name`.

    `texts` and `valid` are blobs of JSON lines as the task has them, {"text"} for language modelling. Without `valid`
    a share of `texts` is held out to find the best state by. A fusion's members are adapters by name or digest. With
    `adamix` the bank of experts is pushed as `name` and "-bank", and its merge as `name`.
    """

    name: str = Field(max_length=129)
    domain: Words = Field(min_length=1, max_length=200)
    base_model: str = Field(max_length=64)
    texts: Digest
    valid: Digest | None = None
    valid_share: float | None = Field(default=None, gt=0, lt=1)
    spec: TrainingSpec = TrainingSpec()
    sample: int = Field(default=SAMPLE, ge=0, le=10_000)
    """Training passages that become the adapter's sample; 0 for none."""
    card: Card = Card()

    @model_validator(mode="after")
    def _validated_on_one(self) -> Self:
        if self.valid is not None and self.valid_share is not None:
            raise ValueError("give 'valid' (a blob) or 'valid_share', not both")
        return self

    @property
    def share(self) -> float:
        """The share of the data to validate on where no other data are given."""
        return VALID_SHARE if self.valid_share is None else self.valid_share
