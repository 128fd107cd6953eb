"""Rows of the catalogue as frozen values, which its repositories return: no SQL above the catalogue."""

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
"""The visible namespaces; None is all."""
Etags = frozenset[str] | None
"""The etags of which a row has to have one, before it is changed; `*` stands for any, None for no condition."""
Kind = Literal["adapter", "soup"]
SampleState = Literal["none", "pending", "ready", "failed"]
ENQUEUED_BY_PUSHES = ("embed", "fit")
"""Kinds of jobs that pushes enqueue to maintain stored data. A caller can also request a fit."""
Mode = Literal["read", "autocommit", "write", "unlocked", "commit"]
"""Modes of a transaction: `autocommit` reads by single statements, `unlocked` writes without the write lock, `commit`
is the end of a write."""
JobState = Literal["queued", "running", "succeeded", "failed", "cancelled"]
Row = TypeVar("Row")


@dataclass(frozen=True)
class Page(Generic[Row]):
    """One page of a list, and the cursor of the next one (None at the end)."""

    rows: tuple[Row, ...]
    next_cursor: str | None


@dataclass(frozen=True, kw_only=True)
class DescribedAdapter:
    """Common fields of new, listed and stored adapters: everything but their provenance."""

    namespace: str
    name: str
    kind: Kind
    digest: str
    base_model: str
    base_fingerprint: str
    config: SkipValidation[AdapterConfig]
    domain: str
    owner: str | None = None
    """Label of the team or address responsible for the name; the same for all versions."""
    card: Card
    weights_blob: str
    dtype: str
    parameters: int
    size_bytes: int
    sample: SampleReport | None
    sample_state: SampleState
    recipe_digest: str | None
    tuned_on: str | None
    """Digest of the sample that a tuned soup was trained on."""
    learnt_from: tuple[str, ...] = ()
    """Digests of all samples it was trained on, including those of its ingredients."""
    created_by: str


@dataclass(frozen=True, kw_only=True)
class NewAdapter(DescribedAdapter):
    """An adapter to be stored; the catalogue assigns its version."""

    provenance: Provenance


@dataclass(frozen=True, kw_only=True)
class ListedRow(DescribedAdapter):
    """A stored adapter or soup in a list, without its provenance, which can be long."""

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
        """True if it was trained on the sample it was cooked for."""
        return self.tuned_on is not None


@dataclass(frozen=True, kw_only=True)
class AdapterRow(ListedRow, NewAdapter):
    """A stored adapter or soup."""


class AdapterFilters(TypedDict, total=False):
    """Filters of a list of adapters, which must all match; None, like an absent filter, matches everything."""

    base_model: str | None
    method: str | None
    domain: str | None
    owner: str | None
    kind: str | None
    namespace: str | None
    name: str | None
    """`law` in any namespace, or `acme/law`."""
    newest: bool | None
    """Only the newest live version of each name."""
    tags: Sequence[str]
    """Tags that the adapter must all have."""
    tuned_on: str | None
    q: str | None
    """Words that must each be, or begin, a word of the adapter (`words`)."""


@dataclass(frozen=True)
class PooledRow:
    """An adapter of a pool or a lineage, with few columns, since thousands are read for one selection."""

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
    """Aliases that only an admin may move or remove."""
    unnamed_soup_days: int | None
    """Days without use after which an unnamed soup is retired; 0 is never, None is the server's setting."""
    etag: str


@dataclass(frozen=True)
class EmbeddingRow:
    """The embedding of a sample by an encoder; the vectors are a blob."""

    sample_digest: str
    encoder_digest: str
    encoder_name: str
    unit: Unit
    blob_digest: str
    count: int
    dimensions: int
    truncated: int


class StoredVectors(NamedTuple):
    """The blob of a sample's vectors by one encoder, and their shape (units, dimensions)."""

    blob: str
    units: int
    dimensions: int


@dataclass(frozen=True)
class StatisticRow:
    """A statistic of an adapter, computed on `passages` and `tokens` of its sample; the values are a blob."""

    adapter_digest: str
    sample_digest: str
    kind: StatisticKind
    blob_digest: str
    passages: int
    tokens: int


@dataclass(frozen=True)
class MemberRow:
    """An adapter that a selector was fitted on."""

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
    """A fitted selector in a list, without its members, of which there may be thousands."""

    id: str
    pool: PoolSpec
    domains: int
    fitted_at: datetime


@dataclass(frozen=True)
class SelectorState:
    """The stored state of a selector, and when its pool and spec were last requested, without its members."""

    id: str
    spec: SelectorSpec
    encoder_digest: str | None
    state_blob: str
    asked_at: datetime


@dataclass(frozen=True)
class RecipeRow:
    """A cooked recipe, with the digest and the blob of its soup."""

    recipe: Recipe
    adapter_digest: str
    weights_blob: str
    report: MixReport


@dataclass(frozen=True)
class JobRow:
    """A job, as record and queue entry. `arguments` are ids and small parameters, `owner` is the name of its key.

    `owner_namespaces` are those the key sees (None: all); the job is in `namespace`. Of its `attempts`, `failures`
    ended with an error and were retried, and `crashes` ended with their process, since its checkpoint was at `reached`.
    `started_at` is the start of the last attempt.
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
    """The span that it was enqueued in."""

    @property
    def is_requested(self) -> bool:
        """True if a caller requested the job; otherwise it maintains stored data."""
        return self.kind not in ENQUEUED_BY_PUSHES or bool(self.arguments.get("asked"))


@dataclass(frozen=True)
class Requester:
    """A key that requested a job which another key had requested first, and the namespaces it sees (None: all)."""

    key_id: str
    namespaces: Namespaces
    request_id: str | None


@dataclass(frozen=True)
class KeyRow:
    """A key without its secret; with `namespaces` None it sees all, `prefix` is the shown beginning of the secret."""

    id: str
    name: str
    namespaces: tuple[str, ...] | None
    scopes: frozenset[str]
    prefix: str
    created_at: datetime
    revoked_at: datetime | None
    expires_at: datetime | None
    """None if the key does not expire."""
    last_used_at: datetime | None
    """Accurate to some minutes; None if it was never used."""
    issuer: str | None = None
    """The issuer of an identity, which is its `subject`; scopes and namespaces are those of its last token."""
    subject: str | None = None

    @property
    def is_lasting_admin(self) -> bool:
        """True for a key with scope `admin` and all namespaces that does not end; identities depend on their issuer."""
        is_permanent = self.revoked_at is None and self.expires_at is None and self.issuer is None
        return is_permanent and self.namespaces is None and "admin" in self.scopes

    def is_expired(self, moment: datetime) -> bool:
        """Return True if the key has expired by `moment`."""
        return self.expires_at is not None and self.expires_at <= moment


@dataclass(frozen=True)
class SessionRow:
    """A browser session: the hash of its token, and of the secret of the key that signed in."""

    token_sha256: str
    secret_sha256: str
    key_id: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True)
class UploadRow:
    """An unfinished multipart upload of a key; `received` bytes are durable.

    `digest` and `size` of the whole are None unless the request that opened it announced them.
    """

    id: str
    key_id: str
    digest: str | None
    size: int | None
    received: int
    created_at: datetime
    expires_at: datetime


class PartRow(UploadPart):
    """A part stored as an object; `added_at` tells it from the same bytes sent again."""

    added_at: datetime


@dataclass(frozen=True)
class AuditRow:
    """An entry of the audit log: a key's action on a subject, in a request."""

    id: int
    at: datetime
    action: str
    subject: str
    namespace: str | None
    key_id: str | None
    request_id: str | None
    detail: Mapping[str, Any]


class AuditFilters(TypedDict, total=False):
    """Filters of the audit log, which must all match; None, like an absent filter, matches everything."""

    action: str | None
    """An action, or a prefix that ends with a dot (`key.`)."""
    subject: str | None
    namespace: str | None
    key_id: str | None
    since: datetime | None
    """Included."""
    until: datetime | None
    """Not included."""
