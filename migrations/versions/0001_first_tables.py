"""Everything there is at the first release; `NAMING` of `registry.catalogue.tables` names constraints and indexes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
DIGEST = sa.String(71)
OPTIONAL_JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "aliases",
        sa.Column("namespace", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("alias", sa.String(64), primary_key=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("id", ID, primary_key=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("subject", sa.String(300), nullable=False),
        sa.Column("namespace", sa.String(64)),
        sa.Column("key_id", sa.String(64)),
        sa.Column("request_id", sa.String(128)),
        sa.Column("detail", sa.JSON(), nullable=False),
    )
    op.create_table(
        "blobs",
        sa.Column("digest", DIGEST, primary_key=True),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "jobs",
        sa.Column("sequence", ID, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("created_by", sa.String(64), nullable=False),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("result", OPTIONAL_JSON),
        sa.Column("error", OPTIONAL_JSON),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("dedupe_key", sa.String(300), index=True),
        sa.Column("run_after", sa.BigInteger(), nullable=False),
        sa.Column("worker", sa.String(64)),
        sa.Column("lease_until", sa.BigInteger()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name="state"),
        sa.Index("ix_jobs_state_run_after", "state", "run_after"),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("secret_sha256", sa.String(64), nullable=False, unique=True),
        sa.Column("namespaces", OPTIONAL_JSON),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("prefix", sa.String(32), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger()),
    )
    op.create_table(
        "adapters",
        sa.Column("id", ID, primary_key=True),
        sa.Column("namespace", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("digest", DIGEST, nullable=False, index=True),
        sa.Column("base_model", sa.String(64), nullable=False),
        sa.Column("base_fingerprint", DIGEST, nullable=False, index=True),
        sa.Column("method", sa.String(32), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("domain", sa.String(200), nullable=False),
        sa.Column("card", sa.JSON(), nullable=False),
        sa.Column("search", sa.Text(), nullable=False),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("weights_blob", DIGEST, sa.ForeignKey("blobs.digest"), nullable=False, index=True),
        sa.Column("dtype", sa.String(8), nullable=False),
        sa.Column("parameters", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sample", OPTIONAL_JSON),
        sa.Column("sample_digest", DIGEST, index=True),
        sa.Column("sample_state", sa.String(16), nullable=False),
        sa.Column("recipe_digest", DIGEST, index=True),
        sa.Column("created_by", sa.String(64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("retired_at", sa.BigInteger()),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.CheckConstraint("kind IN ('adapter', 'soup')", name="kind"),
        sa.CheckConstraint("sample_state IN ('none', 'pending', 'ready', 'failed')", name="sample_state"),
        sa.UniqueConstraint("namespace", "name", "version"),
    )
    op.create_table(
        "blob_grants",
        sa.Column("namespace", sa.String(64), primary_key=True),
        sa.Column("digest", DIGEST, sa.ForeignKey("blobs.digest"), primary_key=True),
    )
    op.create_table(
        "embeddings",
        sa.Column("sample_digest", DIGEST, primary_key=True),
        sa.Column("encoder_digest", DIGEST, primary_key=True),
        sa.Column("encoder_name", sa.String(32), nullable=False),
        sa.Column("unit", sa.String(16), nullable=False),
        sa.Column("blob_digest", DIGEST, sa.ForeignKey("blobs.digest"), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("dimensions", sa.Integer(), nullable=False),
        sa.Column("truncated", sa.Integer(), nullable=False),
    )
    op.create_table(
        "recipes",
        sa.Column("digest", DIGEST, primary_key=True),
        sa.Column("recipe", sa.JSON(), nullable=False),
        sa.Column("adapter_digest", DIGEST, nullable=False),
        sa.Column("weights_blob", DIGEST, sa.ForeignKey("blobs.digest"), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "selectors",
        sa.Column("sequence", ID, primary_key=True),
        sa.Column("id", sa.String(32), nullable=False, unique=True),
        sa.Column("pool_id", DIGEST, nullable=False),
        sa.Column("pool", sa.JSON(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("spec_digest", DIGEST, nullable=False),
        sa.Column("encoder_digest", DIGEST),
        sa.Column("base_fingerprint", DIGEST, nullable=False, index=True),
        sa.Column("state_blob", DIGEST, sa.ForeignKey("blobs.digest"), nullable=False),
        sa.Column("members", sa.JSON(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("fitted_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "selector_namespaces",
        sa.Column("selector", ID, sa.ForeignKey("selectors.sequence"), primary_key=True),
        sa.Column("namespace", sa.String(64), primary_key=True),
    )
    op.create_table(
        "selector_targets",
        sa.Column("pool_id", DIGEST, primary_key=True),
        sa.Column("spec_digest", DIGEST, primary_key=True),
        sa.Column("selector", ID, sa.ForeignKey("selectors.sequence"), nullable=False),
    )
    op.create_table(
        "adapter_tags",
        sa.Column("adapter_id", ID, sa.ForeignKey("adapters.id"), primary_key=True),
        sa.Column("tag", sa.String(64), primary_key=True, index=True),
    )
    op.create_table(
        "evidence",
        sa.Column("id", ID, primary_key=True),
        sa.Column("adapter_id", ID, sa.ForeignKey("adapters.id"), nullable=False, index=True),
        sa.Column("recipe_digest", DIGEST, sa.ForeignKey("recipes.digest"), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "recipe_ingredients",
        sa.Column("recipe_digest", DIGEST, sa.ForeignKey("recipes.digest"), primary_key=True),
        sa.Column("adapter_digest", DIGEST, primary_key=True, index=True),
        sa.Column("weight", sa.String(16), nullable=False),
    )


def downgrade() -> None:
    """Drop every table, and with it its indexes."""
    for name in (
        "recipe_ingredients", "evidence", "adapter_tags", "selector_targets", "selector_namespaces", "selectors",
        "recipes", "embeddings", "blob_grants", "adapters", "keys", "jobs", "blobs", "audit", "aliases",
    ):  # fmt: skip
        op.drop_table(name)
