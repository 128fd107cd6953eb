"""Bodies of `/v1/evaluations`, and how a catalogue row becomes one."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from registry.names import Digest
from registry.spec import PoolRequest
from registry.spec.frozen import Frozen
from service.http.schemas.wire import Wire

if TYPE_CHECKING:
    from registry.catalogue.evaluations import EvaluationRow


class EvaluationRequest(Frozen):
    """`POST /v1/evaluations`: evaluate every adapter of a pool on the samples of all of them."""

    pool: PoolRequest = PoolRequest()
    passages: int = Field(default=50, ge=2, le=500)
    """Of each sample, the first; a pair that was evaluated on as many is not computed again."""


class Evaluation(Wire):
    """How well an adapter predicts passages of a sample, against the base model alone."""

    object: Literal["evaluation"] = "evaluation"
    adapter: str
    """The newest version with these weights that the key sees."""
    digest: Digest
    sample: Digest
    sample_of: str
    """The newest version with this sample that the key sees."""
    domain: str
    """Of that version."""
    adapter_names: int = 1
    """How many names that the key sees have these weights, that of `adapter` among them; of one namespace where one is
    asked for."""
    sample_names: int = 1
    """How many have this sample, counted alike."""
    passages: int
    tokens: int
    mean_nll: float
    """A token, in nats."""
    base_mean_nll: float
    difference: float
    """Mean NLL a token, adapter minus base: below zero is better."""
    standard_error: float
    """Of the difference, over passages."""
    evaluated_at: datetime


def evaluation_body(row: EvaluationRow) -> Evaluation:
    """Return an evaluation row as its body, with mean NLLs in nats a token."""
    return Evaluation(
        adapter=f"{row.adapter}@{row.adapter_version}",
        digest=row.adapter_digest,
        sample=row.sample_digest,
        sample_of=f"{row.sample_of}@{row.sample_version}",
        domain=row.domain,
        passages=row.passages,
        tokens=row.tokens,
        mean_nll=row.nll / row.tokens,
        base_mean_nll=row.base_nll / row.tokens,
        difference=(row.nll - row.base_nll) / row.tokens,
        standard_error=row.standard_error,
        evaluated_at=row.evaluated_at,
        adapter_names=row.adapter_names,
        sample_names=row.sample_names,
    )


class EvaluationList(Wire):
    """One page of evaluations, newest first."""

    object: Literal["list"] = "list"
    data: list[Evaluation]
    next_cursor: str | None = None
