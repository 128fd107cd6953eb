"""Rows of the catalogue as frozen values. Repositories make them; nobody above sees SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

from pydantic import SkipValidation

from registry.spec import (
    AdapterConfig,
    Card,
    MixReport,
    PoolSpec,
    Provenance,
    Recipe,
    SampleReport,
    SelectorSpec,
    StatisticKind,
    TuningSetting,
    Unit,
    UploadPart,
)

Namespaces = tuple[str, ...] | None
"""Namespaces that are visible; None for all."""
Kind = Literal["adapter", "soup"]
SampleState = Literal["none", "pending", "ready", "failed"]
Mode = Literal["read", "glance", "write", "beside", "commit"]
"""What a transaction does.

A `glance` reads by single statements, `beside` writes without its turn, `commit` is the end of one that writes.
"""
JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
Row = TypeVar("Row")


@dataclass(frozen=True)
class Page(Generic[Row]):
    """One page of a list, and the cursor of the next one (None at the end)."""

    rows: tuple[Row, ...]
    next_cursor: str | None


@dataclass(frozen=True, kw_only=True)
class DescribedAdapter:
    """What new, listed and stored adapters have alike: everything but their provenance."""

    namespace: str
    name: str
    kind: Kind
    digest: str
    base_model: str
    base_fingerprint: str
    config: SkipValidation[AdapterConfig]
    domain: str
    owner: str | None = None
    """Who answers for the name, which all of its versions have."""
    card: Card
    weights_blob: str
    dtype: str
    parameters: int
    size_bytes: int
    sample: SampleReport | None
    sample_state: SampleState
    recipe_digest: str | None
    tuned_on: str | None
    """The digest of the sample that a tuned soup was trained on."""
    learnt_from: tuple[str, ...] = ()
    """Digests of all samples that it has learnt from: that one, and those of its ingredients."""
    created_by: str


@dataclass(frozen=True, kw_only=True)
class NewAdapter(DescribedAdapter):
    """An adapter about to be stored; its version is given by the catalogue."""

    provenance: Provenance


@dataclass(frozen=True, kw_only=True)
class ListedRow(DescribedAdapter):
    """A stored adapter or soup as lists have it, without its provenance, which can be long."""

    id: int
    version: int
    created_at: datetime
    retired_at: datetime | None
    etag: str

    @property
    def ref(self) -> str:
        """`ns/name@version`."""
        return f"{self.namespace}/{self.name}@{self.version}"

    @property
    def tuned(self) -> bool:
        """Whether it was trained on the sample that it was cooked for."""
        return self.tuned_on is not None


@dataclass(frozen=True, kw_only=True)
class AdapterRow(ListedRow, NewAdapter):
    """A stored adapter or soup."""


class AdapterFilters(TypedDict, total=False):
    """Which adapters are listed: those for which all of it holds; None and nothing ask for nothing."""

    base_model: str | None
    method: str | None
    domain: str | None
    owner: str | None
    kind: str | None
    namespace: str | None
    name: str | None
    """`law` of whatever namespace, or `acme/law`."""
    newest: bool | None
    """Of each name the newest live version alone."""
    tags: Sequence[str]
    """All of them."""
    tuned_on: str | None
    q: str | None
    """Each of its words is, or begins, a word of the adapter (`words`)."""


@dataclass(frozen=True)
class PooledRow:
    """An adapter of a pool, with what a pool looks at: thousands are read for one selection."""

    id: int
    namespace: str
    name: str
    version: int
    digest: str
    domain: str

    @property
    def ref(self) -> str:
        """`ns/name@version`."""
        return f"{self.namespace}/{self.name}@{self.version}"


@dataclass(frozen=True)
class AliasRow:
    """An alias of a name and the version it points at."""

    namespace: str
    name: str
    alias: str
    version: int
    etag: str


@dataclass(frozen=True)
class NamespaceRow:
    """The settings of a namespace."""

    namespace: str
    tuning: TuningSetting
    protected_aliases: tuple[str, ...]
    """Aliases that only an admin moves or removes."""
    unnamed_soup_days: int | None
    """Days after which an unnamed soup that nobody used is retired; 0 is never, None what the server's setting says."""
    etag: str


@dataclass(frozen=True)
class EmbeddingRow:
    """One sample in one encoder's space; the vectors are a blob."""

    sample_digest: str
    encoder_digest: str
    encoder_name: str
    unit: Unit
    blob_digest: str
    count: int
    dimensions: int
    truncated: int


class StoredVectors(NamedTuple):
    """The blob of a sample's vectors in one encoder's space, and their shape (units, dimensions)."""

    blob: str
    units: int
    dimensions: int


@dataclass(frozen=True)
class StatisticRow:
    """What was computed of an adapter on its sample, of so many passages and tokens; the values are a blob."""

    adapter_digest: str
    sample_digest: str
    kind: StatisticKind
    blob_digest: str
    passages: int
    tokens: int


@dataclass(frozen=True)
class MemberRow:
    """An adapter a selector was fitted on."""

    adapter_id: int
    ref: str
    digest: str
    domain: str


@dataclass(frozen=True)
class SelectorRow:
    """A fitted selector; immutable."""

    id: str
    pool_id: str
    pool: PoolSpec
    spec: SelectorSpec
    spec_digest: str
    encoder_digest: str | None
    state_blob: str
    members: tuple[MemberRow, ...]
    report: Mapping[str, Any]
    fitted_at: datetime


@dataclass(frozen=True)
class FittedRow:
    """What is listed of a fitted selector: not its members, of which there may be thousands."""

    id: str
    pool: PoolSpec
    domains: int
    fitted_at: datetime


@dataclass(frozen=True)
class RecipeRow:
    """A recipe that was cooked, and the bytes it gave."""

    recipe: Recipe
    adapter_digest: str
    weights_blob: str
    report: MixReport


@dataclass(frozen=True)
class JobRow:
    """A job: record and queue entry. `arguments` are ids and small parameters, `owner` the name of the key it is of.

    `owner_namespaces` are what that key sees (None: all), not where the job is. Of its `attempts`, `failures` were its
    own and tried again, and `crashes` ended with their process since what it saves had come to `reached`. It was begun
    last at `started_at`.
    """

    id: str
    kind: str
    state: JobState
    namespace: str
    created_by: str
    owner: str | None
    owner_namespaces: Namespaces
    arguments: Mapping[str, Any]
    progress: Mapping[str, Any]
    result: dict[str, Any] | None
    error: dict[str, Any] | None
    attempts: int
    failures: int
    crashes: int
    reached: int
    run_after: datetime
    lease_until: datetime | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    traceparent: str | None = None
    """Where it was asked for, in traces."""


@dataclass(frozen=True)
class Requester:
    """A key that requested a job which another key had requested first, and the namespaces it sees (None: all)."""

    key_id: str
    namespaces: Namespaces
    request_id: str | None


@dataclass(frozen=True)
class KeyRow:
    """A key without its secret; `namespaces` None sees all, `prefix` is what people recognise it by."""

    id: str
    name: str
    namespaces: tuple[str, ...] | None
    scopes: frozenset[str]
    prefix: str
    created_at: datetime
    revoked_at: datetime | None
    expires_at: datetime | None
    """None: never."""
    last_used_at: datetime | None
    """Within some minutes; None where it never was."""
    issuer: str | None = None
    """Of an identity, which is `subject` there; its scopes and namespaces are those of its last token."""
    subject: str | None = None

    def is_expired(self, moment: datetime) -> bool:
        """Whether the key has ended by then by itself."""
        return self.expires_at is not None and self.expires_at <= moment


@dataclass(frozen=True)
class SessionRow:
    """A browser that signed in: by the hash of what it holds, and of the secret that it signed in with."""

    token_sha256: str
    secret_sha256: str
    key_id: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class UploadRow:
    """An upload in parts that is not whole yet, by the key that opened it; of `received` bytes all are durable.

    What it is to become, its digest and size, only where that was said when it was opened.
    """

    id: str
    key_id: str
    digest: str | None
    size: int | None
    received: int
    created_at: datetime
    expires_at: datetime


class PartRow(UploadPart):
    """A part that is an object, and when it was named: the same bytes that are sent again are another one."""

    added_at: datetime


@dataclass(frozen=True)
class AuditRow:
    """Who did what, when, under which request."""

    id: int
    at: datetime
    action: str
    subject: str
    namespace: str | None
    key_id: str | None
    request_id: str | None
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class UsageKey:
    """What usage is counted by: a UTC day (2030-01-31), who asked, and for what model of which namespace."""

    day: str
    key_id: str
    namespace: str
    model: str


@dataclass(frozen=True)
class UsageSum:
    """Requests that the engine began, the tokens that were read for them, and those that were generated."""

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def __add__(self, other: UsageSum) -> UsageSum:
        return UsageSum(
            self.requests + other.requests, self.tokens_in + other.tokens_in, self.tokens_out + other.tokens_out
        )


@dataclass(frozen=True)
class UsageRow(UsageSum):
    """A sum of usage; of what it is not told apart by it has None."""

    day: str | None = None
    key_id: str | None = None
    namespace: str | None = None
    model: str | None = None
