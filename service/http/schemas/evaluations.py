"""Bodies of `/v1/evaluations`, and how a catalogue row becomes one."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from registry.names import Digest
from registry.spec import PoolRequest
from registry.spec.frozen import Frozen
from service.http.schemas.wire import Page, Wire

if TYPE_CHECKING:
    from registry.catalogue.evaluations import EvaluationRow


class EvaluationRequest(Frozen):
    """`POST /v1/evaluations`: evaluate every adapter of a pool on the samples of all its adapters."""

    pool: PoolRequest = PoolRequest()
    passages: int = Field(default=50, ge=2, le=500)
    """Number of passages of each sample, the first ones. A pair that was evaluated on as many is not computed again."""


class Evaluation(Wire):
    """The NLL of an adapter on passages of a sample, compared with the base model alone."""

    object: Literal["evaluation"] = "evaluation"
    adapter: str
    """The newest version with these weights that the key sees."""
    digest: Digest
    sample: Digest
    sample_of: str
    """The newest version with this sample that the key sees."""
    domain: str
    """The domain of that version."""
    adapter_names: int = 1
    """Number of visible names with these weights, including `adapter`; only names of one namespace if the request
    filters by it."""
    sample_names: int = 1
    """Number of visible names with this sample, counted in the same way."""
    passages: int
    tokens: int
    mean_nll: float
    """Mean NLL per token in nats."""
    base_mean_nll: float
    difference: float
    """Mean NLL per token, adapter minus base model: below zero is better."""
    standard_error: float
    """Standard error of the difference, over passages."""
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


class EvaluationList(Page[Evaluation]):
    """One page of evaluations, newest first."""
