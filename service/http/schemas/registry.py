"""Wire models of adapters, selectors, soups and jobs, and how catalogue rows become them.

Nested values come from `registry.spec` as they are; this module adds what a row knows. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from registry.names import Digest
from registry.spec import (
    AdapterConfig,
    Card,
    Cooked,
    CookRequest,
    MixReport,
    PoolRequest,
    PoolSpec,
    Provenance,
    Recipe,
    SampleReport,
    SampleSource,
    Selection,
    SelectOptions,
    SelectorSpec,
    Verification,
    Words,
)
from registry.spec.frozen import Frozen
from service.http.schemas.inference import Wire

if TYPE_CHECKING:
    from registry.catalogue.rows import AdapterRow, JobRow, SelectorRow

Wait = Annotated[float, Field(ge=0, description="Seconds to wait for the answer before a job is given instead.")]


class Adapter(Wire):
    """A stored adapter or soup."""

    object: Literal["adapter"] = "adapter"
    ref: str
    namespace: str
    name: str
    version: int
    kind: Literal["adapter", "soup"]
    digest: Digest
    base_model: str
    base_fingerprint: Digest
    domain: str
    config: AdapterConfig
    card: Card
    provenance: Provenance
    parameters: int
    dtype: str
    size_bytes: int
    weights_blob: Digest
    sample: SampleReport | None
    sample_state: Literal["none", "pending", "ready", "failed"]
    recipe_digest: Digest | None
    created_at: datetime
    retired_at: datetime | None
    etag: str
    job: str | None = None
    warnings: list[str] = Field(default_factory=list)


def adapter_body(row: AdapterRow, *, job: str | None = None, warnings: tuple[str, ...] = ()) -> Adapter:
    """A row as its body."""
    fields = {name: getattr(row, name) for name in Adapter.model_fields if hasattr(row, name)}
    return Adapter(**fields, job=job, warnings=list(warnings))


class AdapterList(Wire):
    """One page of adapters, newest first."""

    object: Literal["list"] = "list"
    data: list[Adapter]
    next_cursor: str | None = None


class AdapterPatch(Frozen):
    """What may change of an adapter: what people say about it. A given card replaces the whole card."""

    card: Card | None = None
    domain: Words | None = Field(default=None, min_length=1, max_length=200)


class AliasBody(Frozen):
    """Which version an alias points at."""

    version: int = Field(ge=1, le=999_999_999)


class Alias(Wire):
    """An alias of a name and the version it points at."""

    object: Literal["alias"] = "alias"
    alias: str
    version: int
    ref: str
    etag: str


class AliasList(Wire):
    """Every alias of a name."""

    object: Literal["list"] = "list"
    data: list[Alias]


class Parent(Wire):
    """An ingredient of a soup."""

    ref: str | None
    """Null where the ingredient lives in a namespace this key does not see."""
    digest: Digest
    weight: str
    retired: bool


class Child(Wire):
    """A soup this adapter is an ingredient of."""

    ref: str
    digest: Digest


class Lineage(Wire):
    """Parents and children of an adapter, and the evidence its soup was cooked on."""

    object: Literal["lineage"] = "lineage"
    adapter: str
    recipe: Recipe | None
    parents: list[Parent]
    children: list[Child]
    evidence: list[dict[str, Any]]


class StoredFile(Wire):
    """One file of an adapter."""

    name: str
    size: int
    digest: Digest


class FileList(Wire):
    """The files of an adapter."""

    object: Literal["list"] = "list"
    data: list[StoredFile]


# --- selectors ------------------------------------------------------------------------------------


class FitRequest(Frozen):
    """`POST /v1/selectors`: fit a selector over a pool."""

    selector: SelectorSpec
    pool: PoolRequest = PoolRequest()
    wait: Wait | None = None


class Member(Wire):
    """One adapter a selector was fitted on."""

    ref: str
    digest: Digest
    domain: str


class Selector(Wire):
    """A fitted, immutable selector."""

    object: Literal["selector"] = "selector"
    id: str
    selector: SelectorSpec
    pool: PoolSpec
    domains: int
    members: list[Member]
    report: dict[str, Any]
    fitted_at: datetime
    not_yet_included: list[str]


def selector_body(row: SelectorRow, not_yet_included: tuple[str, ...]) -> Selector:
    """A row as its body."""
    return Selector(
        id=row.id,
        selector=row.spec,
        pool=row.pool,
        domains=len(row.members),
        members=[Member(ref=one.ref, digest=one.digest, domain=one.domain) for one in row.members],
        report=dict(row.report),
        fitted_at=row.fitted_at,
        not_yet_included=list(not_yet_included),
    )


class SelectorList(Wire):
    """One page of selectors, newest first."""

    object: Literal["list"] = "list"
    data: list[Selector]
    next_cursor: str | None = None


class SelectRequest(Frozen):
    """`POST /v1/select`: which adapters of a pool a sample belongs to, without cooking."""

    sample: SampleSource
    selector: SelectorSpec | None = None
    options: SelectOptions = SelectOptions()
    pool: PoolRequest = PoolRequest()
    wait: Wait | None = None


class Selected(Wire):
    """A selection with everything that led to it."""

    object: Literal["selection"] = "selection"
    selection: Selection
    sample: SampleReport
    selector: str
    fitted_at: datetime
    not_yet_included: list[str]


# --- soups and jobs -------------------------------------------------------------------------------


class SoupRequest(CookRequest):
    """`POST /v1/soups`: a CookRequest, and how long to wait for it."""

    wait: Wait | None = None


class Soup(Wire):
    """What was cooked: a soup, one adapter that needs no mixing, or the base where `abstained`."""

    object: Literal["soup"] = "soup"
    abstained: bool
    reason: str
    model: str
    digest: Digest | None
    soup: Adapter | None
    cached: bool
    recipe: Recipe | None
    recipe_digest: Digest | None
    report: MixReport | None
    selection: Selection | None
    sample: SampleReport | None
    verification: Verification | None
    selector: str | None
    fitted_at: datetime | None
    not_yet_included: list[str]


def soup_body(cooked: Cooked, row: AdapterRow | None) -> Soup:
    """A cooked request as its body; `row` is the soup or adapter behind its model."""
    evidence = cooked.evidence
    return Soup(
        **{name: getattr(cooked, name) for name in Soup.model_fields if name in Cooked.model_fields},
        soup=None if row is None else adapter_body(row),
        selection=evidence.selection,
        sample=evidence.sample,
        verification=evidence.verification,
        selector=evidence.selector,
        fitted_at=evidence.fitted_at,
        not_yet_included=list(evidence.not_yet_included),
    )


class Progress(Wire):
    """How far a job is."""

    done: int
    total: int
    message: str


class Job(Wire):
    """Work that outlives its request."""

    object: Literal["job"] = "job"
    id: str
    kind: str
    state: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    progress: Progress
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    attempts: int
    created_at: datetime
    updated_at: datetime


def job_body(row: JobRow, result: Mapping[str, Any] | None = None) -> Job:
    """A row as its body; `result` stands for the stored one where a kind shows it otherwise."""
    progress: Mapping[str, Any] = row.progress or {}
    return Job(
        id=row.id,
        kind=row.kind,
        state=row.state,
        progress=Progress(
            done=progress.get("done", 0), total=progress.get("total", 0), message=progress.get("message", "")
        ),
        result=row.result if result is None else dict(result),
        error=row.error,
        attempts=row.attempts,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )


class JobList(Wire):
    """One page of jobs, newest first."""

    object: Literal["list"] = "list"
    data: list[Job]
    next_cursor: str | None = None
