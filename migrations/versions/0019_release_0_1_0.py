"""The whole schema of release 0.1.0."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0019"
down_revision = None
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
LIVE = sa.text("retired_at IS NULL")
LEARNT = sa.text("learnt_from IS NOT NULL")
TABLES = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _table(name: str, *items: sa.schema.SchemaItem) -> None:
    sa.Table(name, TABLES, *items)


_table(
    "aliases",
    sa.Column("namespace", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("alias", sa.String(64), primary_key=True),
    sa.Column("version", sa.Integer(), nullable=False),
    sa.Column("revision", sa.Integer(), nullable=False),
)
_table(
    "audit",
    sa.Column("id", ROW_ID, autoincrement=True, primary_key=True),
    sa.Column("at", sa.BigInteger(), nullable=False, index=True),
    sa.Column("action", sa.String(64), nullable=False),
    sa.Column("subject", sa.String(300), nullable=False),
    sa.Column("namespace", sa.String(64)),
    sa.Column("key_id", sa.String(64)),
    sa.Column("request_id", sa.String(128)),
    sa.Column("detail", sa.JSON(), nullable=False),
    sa.Index("ix_audit_action", "action", "id"),
    sa.Index("ix_audit_key_id", "key_id", "id"),
    sa.Index("ix_audit_namespace", "namespace", "id"),
    sa.Index("ix_audit_subject", "subject", "id"),
)
_table(
    "blob_removals",
    sa.Column("digest", sa.String(71), primary_key=True),
    sa.Column("due_at", sa.BigInteger(), nullable=False),
)
_table(
    "blob_uploads",
    sa.Column("key_id", sa.String(64), primary_key=True),
    sa.Column("digest", sa.String(71), primary_key=True),
)
_table(
    "blobs",
    sa.Column("digest", sa.String(71), primary_key=True),
    sa.Column("size", sa.BigInteger(), nullable=False),
    sa.Column("seen_at", sa.BigInteger(), nullable=False, index=True),
)
_table(
    "evaluations",
    sa.Column("id", ROW_ID, autoincrement=True, primary_key=True),
    sa.Column("adapter_digest", sa.String(71), nullable=False),
    sa.Column("sample_digest", sa.String(71), nullable=False, index=True),
    sa.Column("passages", sa.Integer(), nullable=False),
    sa.Column("tokens", sa.BigInteger(), nullable=False),
    sa.Column("nll", sa.Float(precision=53), nullable=False),
    sa.Column("base_nll", sa.Float(precision=53), nullable=False),
    sa.Column("standard_error", sa.Float(precision=53), nullable=False),
    sa.Column("created_by", sa.String(64), nullable=False),
    sa.Column("evaluated_at", sa.BigInteger(), nullable=False),
    sa.UniqueConstraint("adapter_digest", "sample_digest"),
)
_table(
    "job_turns",
    sa.Column("lane", sa.String(16), primary_key=True),
    sa.Column("namespace", sa.String(64), primary_key=True),
    sa.Column("at", sa.BigInteger(), nullable=False),
)
_table(
    "jobs",
    sa.Column("sequence", ROW_ID, autoincrement=True, primary_key=True),
    sa.Column("id", sa.String(32), nullable=False, unique=True),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("namespace", sa.String(64), nullable=False),
    sa.Column("created_by", sa.String(64), nullable=False),
    sa.Column("arguments", sa.JSON(), nullable=False),
    sa.Column("progress", sa.JSON(), nullable=False),
    sa.Column("result", sa.JSON(none_as_null=True)),
    sa.Column("error", sa.JSON(none_as_null=True)),
    sa.Column("attempts", sa.Integer(), nullable=False),
    sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
    sa.Column("crashes", sa.Integer(), server_default=sa.text("0"), nullable=False),
    sa.Column("reached", sa.Integer(), server_default=sa.text("0"), nullable=False),
    sa.Column("traceparent", sa.String(55)),
    sa.Column("dedupe_key", sa.String(300), index=True),
    sa.Column("run_after", sa.BigInteger(), nullable=False),
    sa.Column("worker", sa.String(64)),
    sa.Column("lease_until", sa.BigInteger()),
    sa.Column("created_at", sa.BigInteger(), nullable=False),
    sa.Column("updated_at", sa.BigInteger(), nullable=False),
    sa.Column("started_at", sa.BigInteger()),
    sa.Column("finished_at", sa.BigInteger(), index=True),
    sa.CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name="state"),
    sa.Index("ix_jobs_kind_state", "kind", "state"),
    sa.Index("ix_jobs_state_run_after", "state", "run_after"),
)
_table(
    "keys",
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("name", sa.String(100), nullable=False),
    sa.Column("secret_sha256", sa.String(64), nullable=False, unique=True),
    sa.Column("namespaces", sa.JSON(none_as_null=True)),
    sa.Column("scopes", sa.JSON(), nullable=False),
    sa.Column("prefix", sa.String(32), nullable=False),
    sa.Column("created_at", sa.BigInteger(), nullable=False),
    sa.Column("revoked_at", sa.BigInteger()),
    sa.Column("expires_at", sa.BigInteger()),
    sa.Column("last_used_at", sa.BigInteger()),
    sa.Column("issuer", sa.String(255)),
    sa.Column("subject", sa.String(255)),
    sa.Index("ix_keys_created_at", "created_at", "id"),
)
_table(
    "limits",
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("subject", sa.String(64), primary_key=True),
    sa.Column("requests_per_minute", sa.BigInteger()),
    sa.Column("tokens_per_minute", sa.BigInteger()),
    sa.Column("stored_bytes", sa.BigInteger()),
    sa.Column("adapters", sa.BigInteger()),
    sa.Column("jobs", sa.BigInteger()),
    sa.CheckConstraint("kind IN ('key', 'namespace')", name="kind"),
)
_table(
    "namespaces",
    sa.Column("namespace", sa.String(64), primary_key=True),
    sa.Column("tuning", sa.String(16), nullable=False),
    sa.Column("protected_aliases", sa.JSON(none_as_null=True)),
    sa.Column("unnamed_soup_days", sa.Integer()),
    sa.Column("revision", sa.Integer(), nullable=False),
    sa.CheckConstraint("tuning IN ('forbid', 'allow', 'default')", name="tuning"),
)
_table(
    "purged_adapters",
    sa.Column("namespace", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("version", sa.Integer(), primary_key=True),
    sa.Column("digest", sa.String(71), nullable=False, index=True),
    sa.Column("purged_at", sa.BigInteger(), nullable=False),
)
_table(
    "rate_buckets",
    sa.Column("subject", sa.String(200), primary_key=True),
    sa.Column("measure", sa.String(16), primary_key=True),
    sa.Column("used", sa.Float(precision=53), nullable=False),
    sa.Column("at", sa.BigInteger(), nullable=False),
)
_table(
    "replicas",
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("url", sa.String(300)),
    sa.Column("bases", sa.JSON(), nullable=False),
    sa.Column("places", sa.Integer(), nullable=False),
    sa.Column("bank_bytes", sa.BigInteger(), nullable=False),
    sa.Column("beat", sa.BigInteger(), nullable=False),
    sa.Column("requests", sa.Integer(), nullable=False),
    sa.Column("adapters", sa.Integer(), nullable=False),
    sa.Column("adapter_bytes", sa.BigInteger(), nullable=False),
    sa.Column("started_at", sa.BigInteger(), nullable=False),
    sa.Column("seen_at", sa.BigInteger(), nullable=False),
    sa.CheckConstraint("role IN ('all', 'api', 'worker')", name="role"),
)
_table(
    "stores",
    sa.Column("id", sa.Integer(), autoincrement=False, primary_key=True),
    sa.Column("store", sa.String(32), nullable=False),
    sa.Column("generation", sa.BigInteger(), nullable=False),
    sa.CheckConstraint("id = 1", name="one"),
)
_table(
    "upload_sessions",
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("key_id", sa.String(64), nullable=False, index=True),
    sa.Column("digest", sa.String(71)),
    sa.Column("size", sa.BigInteger()),
    sa.Column("received", sa.BigInteger(), nullable=False),
    sa.Column("reserved", sa.BigInteger(), nullable=False),
    sa.Column("created_at", sa.BigInteger(), nullable=False),
    sa.Column("expires_at", sa.BigInteger(), nullable=False, index=True),
)
_table(
    "usage",
    sa.Column("day", sa.String(10), primary_key=True),
    sa.Column("key_id", sa.String(64), primary_key=True),
    sa.Column("namespace", sa.String(64), primary_key=True),
    sa.Column("model", sa.String(200), primary_key=True),
    sa.Column("requests", sa.BigInteger(), nullable=False),
    sa.Column("tokens_in", sa.BigInteger(), nullable=False),
    sa.Column("tokens_out", sa.BigInteger(), nullable=False),
    sa.Index("ix_usage_key_id", "key_id", "day"),
    sa.Index("ix_usage_namespace", "namespace", "day"),
)
_table(
    "adapters",
    sa.Column("id", ROW_ID, autoincrement=True, primary_key=True),
    sa.Column("namespace", sa.String(64), nullable=False),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("version", sa.Integer(), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("digest", sa.String(71), nullable=False, index=True),
    sa.Column("base_model", sa.String(64), nullable=False),
    sa.Column("base_fingerprint", sa.String(71), nullable=False, index=True),
    sa.Column("method", sa.String(32), nullable=False),
    sa.Column("config", sa.JSON(), nullable=False),
    sa.Column("domain", sa.String(200), nullable=False),
    sa.Column("card", sa.JSON(), nullable=False),
    sa.Column("provenance", sa.JSON(), nullable=False),
    sa.Column("weights_blob", sa.String(71), sa.ForeignKey("blobs.digest"), nullable=False, index=True),
    sa.Column("dtype", sa.String(8), nullable=False),
    sa.Column("parameters", sa.BigInteger(), nullable=False),
    sa.Column("size_bytes", sa.BigInteger(), nullable=False),
    sa.Column("sample", sa.JSON(none_as_null=True)),
    sa.Column("sample_digest", sa.String(71), index=True),
    sa.Column("sample_state", sa.String(16), nullable=False),
    sa.Column("recipe_digest", sa.String(71), index=True),
    sa.Column("tuned_on", sa.String(71), index=True),
    sa.Column("learnt_from", sa.Text()),
    sa.Column("created_by", sa.String(64), nullable=False, index=True),
    sa.Column("created_at", sa.BigInteger(), nullable=False),
    sa.Column("retired_at", sa.BigInteger()),
    sa.Column("revision", sa.Integer(), nullable=False),
    sa.CheckConstraint("kind IN ('adapter', 'soup')", name="kind"),
    sa.CheckConstraint("sample_state IN ('none', 'pending', 'ready', 'failed')", name="sample_state"),
    sa.UniqueConstraint("namespace", "name", "version"),
    sa.Index("ix_adapters_learnt_from", "id", sqlite_where=LEARNT, postgresql_where=LEARNT),
    sa.Index("ix_adapters_live", "id", sqlite_where=LIVE, postgresql_where=LIVE),
    *(
        sa.Index(f"ix_adapters_live_{column}", column, "id", sqlite_where=LIVE, postgresql_where=LIVE)
        for column in ("base_model", "domain", "kind", "method", "name", "namespace")
    ),
)
_table(
    "blob_grants",
    sa.Column("namespace", sa.String(64), primary_key=True),
    sa.Column("digest", sa.String(71), sa.ForeignKey("blobs.digest"), primary_key=True),
)
_table(
    "embeddings",
    sa.Column("sample_digest", sa.String(71), primary_key=True),
    sa.Column("encoder_digest", sa.String(71), primary_key=True),
    sa.Column("encoder_name", sa.String(32), nullable=False),
    sa.Column("unit", sa.String(16), nullable=False),
    sa.Column("blob_digest", sa.String(71), sa.ForeignKey("blobs.digest"), nullable=False, index=True),
    sa.Column("count", sa.Integer(), nullable=False),
    sa.Column("dimensions", sa.Integer(), nullable=False),
    sa.Column("truncated", sa.Integer(), nullable=False),
)
_table(
    "former_secrets",
    sa.Column("secret_sha256", sa.String(64), primary_key=True),
    sa.Column("key_id", sa.String(32), sa.ForeignKey("keys.id"), nullable=False, index=True),
    sa.Column("ends_at", sa.BigInteger(), nullable=False),
)
_table(
    "job_askers",
    sa.Column("job", sa.String(32), sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("key_id", sa.String(64), primary_key=True),
    sa.Column("request_id", sa.String(128)),
    sa.Column("asked_at", sa.BigInteger(), nullable=False),
)
_table(
    "recipes",
    sa.Column("digest", sa.String(71), primary_key=True),
    sa.Column("recipe", sa.JSON(), nullable=False),
    sa.Column("adapter_digest", sa.String(71), nullable=False),
    sa.Column("weights_blob", sa.String(71), sa.ForeignKey("blobs.digest"), nullable=False, index=True),
    sa.Column("report", sa.JSON(), nullable=False),
    sa.Column("created_at", sa.BigInteger(), nullable=False),
)
_table(
    "selectors",
    sa.Column("sequence", ROW_ID, autoincrement=True, primary_key=True),
    sa.Column("id", sa.String(32), nullable=False, unique=True),
    sa.Column("pool_id", sa.String(71), nullable=False),
    sa.Column("pool", sa.JSON(), nullable=False),
    sa.Column("spec", sa.JSON(), nullable=False),
    sa.Column("spec_digest", sa.String(71), nullable=False),
    sa.Column("encoder_digest", sa.String(71)),
    sa.Column("base_fingerprint", sa.String(71), nullable=False, index=True),
    sa.Column("state_blob", sa.String(71), sa.ForeignKey("blobs.digest"), nullable=False, index=True),
    sa.Column("members", sa.JSON(), nullable=False),
    sa.Column("report", sa.JSON(), nullable=False),
    sa.Column("fitted_at", sa.BigInteger(), nullable=False),
)
_table(
    "sessions",
    sa.Column("token_sha256", sa.String(64), primary_key=True),
    sa.Column("secret_sha256", sa.String(64), nullable=False),
    sa.Column("key_id", sa.String(32), sa.ForeignKey("keys.id"), nullable=False, index=True),
    sa.Column("created_at", sa.BigInteger(), nullable=False),
    sa.Column("expires_at", sa.BigInteger(), nullable=False, index=True),
)
_table(
    "statistics",
    sa.Column("adapter_digest", sa.String(71), primary_key=True),
    sa.Column("sample_digest", sa.String(71), primary_key=True),
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("blob_digest", sa.String(71), sa.ForeignKey("blobs.digest"), nullable=False, index=True),
    sa.Column("passages", sa.Integer(), nullable=False),
    sa.Column("tokens", sa.BigInteger(), nullable=False),
)
_table(
    "adapter_tags",
    sa.Column("adapter_id", ROW_ID, sa.ForeignKey("adapters.id"), primary_key=True),
    sa.Column("tag", sa.String(64), primary_key=True),
    sa.Index("ix_adapter_tags_tag", "tag", "adapter_id"),
)
_table(
    "adapter_words",
    sa.Column("adapter_id", ROW_ID, sa.ForeignKey("adapters.id"), autoincrement=False, primary_key=True),
    sa.Column("words", sa.Text().with_variant(TSVECTOR(), "postgresql"), nullable=False),
)
_table(
    "evidence",
    sa.Column("id", ROW_ID, autoincrement=True, primary_key=True),
    sa.Column("adapter_id", ROW_ID, sa.ForeignKey("adapters.id"), nullable=False, index=True),
    sa.Column("recipe_digest", sa.String(71), sa.ForeignKey("recipes.digest"), nullable=False, index=True),
    sa.Column("evidence", sa.JSON(), nullable=False),
    sa.Column("created_at", sa.BigInteger(), nullable=False),
)
_table(
    "recipe_ingredients",
    sa.Column("recipe_digest", sa.String(71), sa.ForeignKey("recipes.digest"), primary_key=True),
    sa.Column("adapter_digest", sa.String(71), primary_key=True, index=True),
    sa.Column("weight", sa.String(16), nullable=False),
    sa.Column("statistic", sa.String(71), index=True),
)
_table(
    "selector_namespaces",
    sa.Column("selector", ROW_ID, sa.ForeignKey("selectors.sequence"), primary_key=True),
    sa.Column("namespace", sa.String(64), primary_key=True),
)
_table(
    "selector_targets",
    sa.Column("pool_id", sa.String(71), primary_key=True),
    sa.Column("spec_digest", sa.String(71), primary_key=True),
    sa.Column("selector", ROW_ID, sa.ForeignKey("selectors.sequence"), nullable=False),
    sa.Column("asked_at", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
)

SQLITE_INDEX = (
    """CREATE VIRTUAL TABLE adapter_words_index USING fts5(
        words, content='adapter_words', content_rowid='adapter_id', tokenize="ascii tokenchars '=.-_'", detail='none',
        prefix='1 2 3')""",
    """CREATE TRIGGER adapter_words_added AFTER INSERT ON adapter_words BEGIN
        INSERT INTO adapter_words_index (rowid, words) VALUES (new.adapter_id, new.words); END""",
    """CREATE TRIGGER adapter_words_removed AFTER DELETE ON adapter_words BEGIN
        INSERT INTO adapter_words_index (adapter_words_index, rowid, words)
        VALUES ('delete', old.adapter_id, old.words); END""",
    """CREATE TRIGGER adapter_words_changed AFTER UPDATE ON adapter_words BEGIN
        INSERT INTO adapter_words_index (adapter_words_index, rowid, words)
        VALUES ('delete', old.adapter_id, old.words);
        INSERT INTO adapter_words_index (rowid, words) VALUES (new.adapter_id, new.words); END""",
)
POSTGRESQL_INDEX = "CREATE INDEX adapter_words_index ON adapter_words USING gin (words) WITH (fastupdate = off)"


def upgrade() -> None:
    """Create every table, and the index of words of each kind of database."""
    TABLES.create_all(op.get_bind())
    for statement in SQLITE_INDEX if op.get_bind().dialect.name == "sqlite" else (POSTGRESQL_INDEX,):
        op.execute(statement)


def downgrade() -> None:
    """Drop every table."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TABLE adapter_words_index")
    TABLES.drop_all(op.get_bind())
