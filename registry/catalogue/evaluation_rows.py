"""Evaluations as frozen values, as `rows` has those of all else."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime


@dataclass(frozen=True, kw_only=True)
class NewEvaluation:
    """How well an adapter predicts some passages of a sample: NLL in nats summed over `tokens`, beside the base's.

    `standard_error` is that of the difference a token, adapter minus base.
    """

    adapter_digest: str
    sample_digest: str
    passages: int
    tokens: int
    nll: float
    base_nll: float
    standard_error: float
    created_by: str
    evaluated_at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, kw_only=True)
class EvaluationRow(NewEvaluation):
    """A stored one, with names of the newest visible versions of the adapter and of the sample."""

    adapter: str
    adapter_version: int
    adapter_domain: str
    own_sample: str | None
    """The digest of the sample of that version of the adapter."""
    sample_of: str
    sample_version: int
    domain: str
    """Of the version that has the sample."""
    adapter_names: int
    """How many visible names have a live version with these weights, the one that is named among them; of one namespace
    where one was asked for."""
    sample_names: int
    """The same of the sample."""
