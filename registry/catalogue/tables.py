"""Most tables; the others are in the modules of their repositories.

The others: `evaluations`, `jobs` (the curves), `rate_buckets`, `replicas`, `uploads` and `words`. Migrations import
this module and no other of the registry.

Moments are integers, microseconds since 1970 in UTC, so that both databases order and compare them alike.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Dialect,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import TypeDecorator

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Microseconds(TypeDecorator[datetime]):
    """An aware datetime as integer microseconds since 1970, UTC."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:  # noqa: ARG002
        """The microseconds of a datetime; raises ValueError for a naive one."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a datetime without a time zone reached the catalogue")
        delta = value - EPOCH
        return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        """The datetime of microseconds."""
        if value is None:
            return None
        seconds, micros = divmod(int(value), 1_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)


metadata = MetaData(naming_convention=NAMING)
Id = BigInteger().with_variant(Integer(), "sqlite")  # SQLite generates ids only for INTEGER PRIMARY KEY
DIGEST = String(71)
PART = String(64)
EVERY = "*"  # not a valid name of a namespace


blobs = Table(
    "blobs",
    metadata,
    Column("digest", DIGEST, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("seen_at", Microseconds, nullable=False, index=True),
)
blob_grants = Table(
    "blob_grants",
    metadata,
    Column("namespace", PART, primary_key=True),
    Column("digest", DIGEST, ForeignKey("blobs.digest"), primary_key=True),
)
adapters = Table(
    "adapters",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("namespace", PART, nullable=False),
    Column("name", PART, nullable=False),
    Column("version", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("digest", DIGEST, nullable=False, index=True),
    Column("base_model", PART, nullable=False),
    Column("base_fingerprint", DIGEST, nullable=False, index=True),
    Column("method", String(32), nullable=False),
    Column("config", JSON, nullable=False),
    Column("domain", String(200), nullable=False),
    Column("owner", String(200)),  # the same for all versions of a name
    Column("card", JSON, nullable=False),
    Column("provenance", JSON, nullable=False),
    Column("weights_blob", DIGEST, ForeignKey("blobs.digest"), nullable=False, index=True),
    Column("dtype", String(8), nullable=False),
    Column("parameters", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("sample", JSON(none_as_null=True)),
    Column("sample_digest", DIGEST, index=True),
    Column("sample_state", String(16), nullable=False),
    Column("recipe_digest", DIGEST, index=True),
    Column("tuned_on", DIGEST, index=True),
    Column("learnt_from", Text),  # digests of samples, separated by blanks; NULL if there are none
    Column("created_by", String(64), nullable=False, index=True),
    Column("created_at", Microseconds, nullable=False),
    Column("retired_at", Microseconds),
    Column("revision", Integer, nullable=False),
    UniqueConstraint("namespace", "name", "version"),
    CheckConstraint("kind IN ('adapter', 'soup')", name="kind"),
    CheckConstraint("sample_state IN ('none', 'pending', 'ready', 'failed')", name="sample_state"),
    Index(
        "ix_adapters_learnt_from",
        "id",
        sqlite_where=text("learnt_from IS NOT NULL"),
        postgresql_where=text("learnt_from IS NOT NULL"),
    ),
    sqlite_autoincrement=True,  # jobs and selectors keep ids of purged versions: no id is given again
)
LIVE = adapters.c.retired_at.is_(None)
HAS_TEXT = adapters.c.sample["has_text"].as_boolean()  # else `sample_digest` names vectors alone, and no blob
for column in ("namespace", "name", "domain", "base_model", "method", "kind", "owner"):  # filters of lists
    Index(f"ix_adapters_live_{column}", adapters.c[column], adapters.c.id, sqlite_where=LIVE, postgresql_where=LIVE)
Index("ix_adapters_live", adapters.c.id, sqlite_where=LIVE, postgresql_where=LIVE)
adapter_tags = Table(
    "adapter_tags",
    metadata,
    Column("adapter_id", Id, ForeignKey("adapters.id"), primary_key=True),
    Column("tag", PART, primary_key=True),
    Index("ix_adapter_tags_tag", "tag", "adapter_id"),
)
aliases = Table(
    "aliases",
    metadata,
    Column("namespace", PART, primary_key=True),
    Column("name", PART, primary_key=True),
    Column("alias", PART, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("revision", Integer, nullable=False),
)
purged_adapters = Table(  # permanently removed versions, whose numbers are not used again
    "purged_adapters",
    metadata,
    Column("namespace", PART, primary_key=True),
    Column("name", PART, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("digest", DIGEST, nullable=False, index=True),
    Column("purged_at", Microseconds, nullable=False),
)
blob_removals = Table(  # unreferenced blobs whose files are to be removed; a new reference cancels it
    "blob_removals",
    metadata,
    Column("digest", DIGEST, primary_key=True),
    Column("due_at", Microseconds, nullable=False),
)
stores = Table(  # the mark of the store that this database belongs to: one row
    "stores",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("store", String(32), nullable=False),
    Column("generation", BigInteger, nullable=False),
    CheckConstraint("id = 1", name="one"),
)
namespaces = Table(
    "namespaces",
    metadata,
    Column("namespace", PART, primary_key=True),
    Column("tuning", String(16), nullable=False),
    Column("protected_aliases", JSON(none_as_null=True)),
    Column("unnamed_soup_days", Integer),  # NULL is the server's setting, 0 is never
    Column("revision", Integer, nullable=False),
    CheckConstraint("tuning IN ('forbid', 'allow', 'default')", name="tuning"),
)
embeddings = Table(
    "embeddings",
    metadata,
    Column("sample_digest", DIGEST, primary_key=True),
    Column("encoder_digest", DIGEST, primary_key=True),
    Column("encoder_name", String(32), nullable=False),
    Column("unit", String(16), nullable=False),
    Column("blob_digest", DIGEST, ForeignKey("blobs.digest"), nullable=False, index=True),
    Column("count", Integer, nullable=False),
    Column("dimensions", Integer, nullable=False),
    Column("truncated", Integer, nullable=False),
)
selectors = Table(
    "selectors",
    metadata,
    Column("sequence", Id, primary_key=True, autoincrement=True),
    Column("id", String(32), nullable=False, unique=True),
    Column("pool_id", DIGEST, nullable=False),
    Column("pool", JSON, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("spec_digest", DIGEST, nullable=False),
    Column("encoder_digest", DIGEST),
    Column("base_fingerprint", DIGEST, nullable=False, index=True),
    Column("state_blob", DIGEST, ForeignKey("blobs.digest"), nullable=False, index=True),
    Column("members", JSON, nullable=False),
    Column("report", JSON, nullable=False),
    Column("fitted_at", Microseconds, nullable=False),
)
selector_namespaces = Table(  # the namespaces of a selector's pool; EVERY for an admin's pool
    "selector_namespaces",
    metadata,
    Column("selector", Id, ForeignKey("selectors.sequence"), primary_key=True),
    Column("namespace", PART, primary_key=True),
)
selector_targets = Table(  # the selector that serves a pool and spec: the one fitted or confirmed last
    "selector_targets",
    metadata,
    Column("pool_id", DIGEST, primary_key=True),
    Column("spec_digest", DIGEST, primary_key=True),
    Column("selector", Id, ForeignKey("selectors.sequence"), nullable=False),
    Column("asked_at", Microseconds, nullable=False, server_default=text("0")),
)
recipes = Table(
    "recipes",
    metadata,
    Column("digest", DIGEST, primary_key=True),
    Column("recipe", JSON, nullable=False),
    Column("adapter_digest", DIGEST, nullable=False),
    Column("weights_blob", DIGEST, ForeignKey("blobs.digest"), nullable=False, index=True),
    Column("report", JSON, nullable=False),
    Column("created_at", Microseconds, nullable=False),
)
recipe_ingredients = Table(
    "recipe_ingredients",
    metadata,
    Column("recipe_digest", DIGEST, ForeignKey("recipes.digest"), primary_key=True),
    Column("adapter_digest", DIGEST, primary_key=True),
    Column("weight", String(16), nullable=False),
    Column("statistic", DIGEST, index=True),  # the blob of the statistic it was mixed with, if any
    Index("ix_recipe_ingredients_adapter_digest", "adapter_digest"),
)
statistics = Table(  # statistics of adapters on their samples, such as Fisher information
    "statistics",
    metadata,
    Column("adapter_digest", DIGEST, primary_key=True),
    Column("sample_digest", DIGEST, primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("blob_digest", DIGEST, ForeignKey("blobs.digest"), nullable=False, index=True),
    Column("passages", Integer, nullable=False),
    Column("tokens", BigInteger, nullable=False),
)
probes = Table(  # of adapters by their digests, and of base models by their fingerprints
    "probes",
    metadata,
    Column("digest", DIGEST, primary_key=True),
    Column("probe", JSON, nullable=False),
)
evidence = Table(
    "evidence",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("adapter_id", Id, ForeignKey("adapters.id"), nullable=False, index=True),
    Column("recipe_digest", DIGEST, ForeignKey("recipes.digest"), nullable=False, index=True),
    Column("evidence", JSON, nullable=False),
    Column("created_at", Microseconds, nullable=False),
)
jobs = Table(
    "jobs",
    metadata,
    Column("sequence", Id, primary_key=True, autoincrement=True),
    Column("id", String(32), nullable=False, unique=True),
    Column("kind", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("namespace", PART, nullable=False),
    Column("created_by", String(64), nullable=False),
    Column("arguments", JSON, nullable=False),
    Column("progress", JSON, nullable=False),
    Column("result", JSON(none_as_null=True)),
    Column("error", JSON(none_as_null=True)),
    Column("attempts", Integer, nullable=False),
    Column("failures", Integer, nullable=False, server_default=text("0")),  # attempts that ended with an error
    Column("crashes", Integer, nullable=False, server_default=text("0")),  # since its last checkpoint
    Column("reached", Integer, nullable=False, server_default=text("0")),  # its last checkpoint
    Column("traceparent", String(55)),  # the span that it was enqueued in
    Column("dedupe_key", String(300)),
    Column("run_after", Microseconds, nullable=False),
    Column("worker", String(64)),
    Column("lease_until", Microseconds),
    Column("created_at", Microseconds, nullable=False),
    Column("updated_at", Microseconds, nullable=False),
    Column("started_at", Microseconds),
    Column("finished_at", Microseconds),
    CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name="state"),
    Index("ix_jobs_state_run_after", "state", "run_after"),
    Index("ix_jobs_dedupe_key", "dedupe_key"),
    Index("ix_jobs_kind_state", "kind", "state"),
    Index("ix_jobs_finished_at", "finished_at"),
)
job_askers = Table(  # further keys that requested a job, which continues for them if its key is revoked
    "job_askers",
    metadata,
    Column("job", String(32), ForeignKey("jobs.id"), primary_key=True),
    Column("key_id", String(64), primary_key=True),
    Column("request_id", String(128)),
    Column("asked_at", Microseconds, nullable=False),
)
job_turns = Table(  # turns of namespaces in a lane: the earliest `at` is next, and jobs advance it by their duration
    "job_turns",
    metadata,
    Column("lane", String(16), primary_key=True),
    Column("namespace", PART, primary_key=True),
    Column("at", Microseconds, nullable=False),
)
keys = Table(
    "keys",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(100), nullable=False),
    Column("secret_sha256", String(64), nullable=False, unique=True),
    Column("namespaces", JSON(none_as_null=True)),
    Column("scopes", JSON, nullable=False),
    Column("prefix", String(32), nullable=False),
    Column("created_at", Microseconds, nullable=False),
    Column("revoked_at", Microseconds),
    Column("expires_at", Microseconds),
    Column("last_used_at", Microseconds),
    Column("issuer", String(255)),  # of an identity, which has no secret
    Column("subject", String(255)),
    Index("ix_keys_created_at", "created_at", "id"),
)
former_secrets = Table(  # previous secrets of keys, kept so that none is accepted again after its end
    "former_secrets",
    metadata,
    Column("secret_sha256", String(64), primary_key=True),
    Column("key_id", String(32), ForeignKey("keys.id"), nullable=False, index=True),
    Column("ends_at", Microseconds, nullable=False),
)
sessions = Table(  # sessions of browsers, with hashes only of the session token and of the key's secret
    "sessions",
    metadata,
    Column("token_sha256", String(64), primary_key=True),
    Column("secret_sha256", String(64), nullable=False),
    Column("key_id", String(32), ForeignKey("keys.id"), nullable=False, index=True),
    Column("created_at", Microseconds, nullable=False),
    Column("expires_at", Microseconds, nullable=False, index=True),
)
audit = Table(
    "audit",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("at", Microseconds, nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", String(300), nullable=False),
    Column("namespace", PART),
    Column("key_id", String(64)),
    Column("request_id", String(128)),
    Column("detail", JSON, nullable=False),
    Index("ix_audit_action", "action", "id"),
    Index("ix_audit_subject", "subject", "id"),
    Index("ix_audit_namespace", "namespace", "id"),
    Index("ix_audit_key_id", "key_id", "id"),
    Index("ix_audit_at", "at"),
)
limits = Table(  # limits of a key or a namespace; NULL is the server's default
    "limits",
    metadata,
    Column("kind", String(16), primary_key=True),
    Column("subject", String(64), primary_key=True),
    Column("requests_per_minute", BigInteger),
    Column("tokens_per_minute", BigInteger),
    Column("stored_bytes", BigInteger),
    Column("adapters", BigInteger),
    Column("jobs", BigInteger),
    CheckConstraint("kind IN ('key', 'namespace')", name="kind"),
)
blob_uploads = Table(  # the keys that uploaded a blob, for their quota; removed blobs do not count
    "blob_uploads",
    metadata,
    Column("key_id", String(64), primary_key=True),
    Column("digest", DIGEST, primary_key=True),
)
usage = Table(
    "usage",
    metadata,
    Column("day", String(10), primary_key=True),  # UTC, 2030-01-31
    Column("key_id", String(64), primary_key=True),
    Column("namespace", PART, primary_key=True),
    Column("model", String(200), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("tokens_in", BigInteger, nullable=False),
    Column("tokens_out", BigInteger, nullable=False),
    Index("ix_usage_key_id", "key_id", "day"),
    Index("ix_usage_namespace", "namespace", "day"),
)
