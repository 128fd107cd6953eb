"""Wire models of the routes that are ours alone: perplexity, keys, audit, blobs, health. Values that are also stored
or hashed live in `registry.spec`; the OpenAI shapes in `service/openai_schemas.py`. Never imports torch.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from registry.names import Digest, Part
from registry.spec import PerplexityReport, Words

Scope = Literal["read", "write", "infer", "admin"]
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
"""A base id, `base/<id>`, `ns/name[@...]` or an adapter digest."""


class Wire(BaseModel):
    """A body: unknown fields, NaN and values of another type ("16" for 16) are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True, use_attribute_docstrings=True)


# --- perplexity -----------------------------------------------------------------------------------


class PerplexityRequest(Wire):
    """Texts to score under a model, and optionally under a second one to compare with."""

    model: ModelName
    texts: Annotated[list[str], Field(fail_fast=True)] = Field(min_length=1)
    baseline: ModelName | None = None
    seed: int = Field(default=0, ge=0, lt=2**32, description="Seed of the bootstrap behind the standard errors.")


class ComparedModel(Wire):
    """The baseline on the same texts; `difference` is mean NLL per token, the model minus the baseline."""

    model: str
    digest: str | None
    perplexity: float
    mean_nll: float
    difference: float
    standard_error: float


class PerplexityAnswer(PerplexityReport):
    """Perplexity of a model on texts, with its uncertainty (METHODS section 6)."""

    object: Literal["perplexity"] = "perplexity"
    model: str
    digest: str | None
    """The adapter digest that was used; null for a base model."""
    baseline: ComparedModel | None = None  # type: ignore[assignment]


# --- blobs ----------------------------------------------------------------------------------------


class BlobStored(Wire):
    """An uploaded blob."""

    object: Literal["blob"] = "blob"
    digest: Digest
    size: int


# --- keys and audit -------------------------------------------------------------------------------


class NewKey(Wire):
    """A key to make. `namespaces` null sees every namespace."""

    name: Words = Field(min_length=1, max_length=100)
    namespaces: list[Part] | None = Field(max_length=1000)
    scopes: list[Scope] = Field(min_length=1, max_length=8)


class Key(Wire):
    """A key, without its secret; `prefix` is the beginning of the secret."""

    object: Literal["key"] = "key"
    id: str
    name: str
    prefix: str
    namespaces: list[str] | None
    scopes: list[str]
    created_at: datetime
    revoked_at: datetime | None = None


class CreatedKey(Key):
    """A key just made: the only answer that ever holds its secret."""

    secret: str


class KeyList(Wire):
    """Every key, revoked ones included."""

    object: Literal["list"] = "list"
    data: list[Key]


class AuditEntry(Wire):
    """Who did what, when, under which request."""

    object: Literal["audit"] = "audit"
    id: int
    at: datetime
    action: str
    subject: str
    key_id: str | None
    request_id: str | None
    detail: dict[str, Any]


class AuditList(Wire):
    """One page of the audit, newest first."""

    object: Literal["list"] = "list"
    data: list[AuditEntry]
    next_cursor: str | None = None


# --- health ---------------------------------------------------------------------------------------


class Alive(Wire):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Ready(Wire):
    """Whether the database answers and every base model in memory computed a token."""

    status: Literal["ready", "not_ready"]
    checks: dict[str, str]
    """By name: 'ok', or what is wrong; 'loads at its next use' for a base model that is not in memory now."""
