"""Everything there is at the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table."""
    op.create_table(
        "aliases",
        sa.Column("namespace", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("alias", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name", "alias", name=op.f("pk_aliases")),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=300), nullable=False),
        sa.Column("namespace", sa.String(length=64), nullable=True),
        sa.Column("key_id", sa.String(length=64), nullable=True),
        sa.Column("request_id", sa.String(length=128), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_table(
        "blobs",
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_blobs")),
    )
    op.create_table(
        "jobs",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("namespace", sa.String(length=64), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("arguments", sa.JSON(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("dedupe_key", sa.String(length=300), nullable=True),
        sa.Column("run_after", sa.BigInteger(), nullable=False),
        sa.Column("worker", sa.String(length=64), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name=op.f("ck_jobs_state")
        ),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_jobs")),
        sa.UniqueConstraint("id", name=op.f("uq_jobs_id")),
    )
    op.create_index("ix_jobs_dedupe_key", "jobs", ["dedupe_key"], unique=False)
    op.create_index("ix_jobs_state_run_after", "jobs", ["state", "run_after"], unique=False)
    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("namespaces", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("prefix", sa.String(length=32), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_keys")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_keys_secret_sha256")),
    )
    op.create_table(
        "adapters",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("namespace", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("base_model", sa.String(length=64), nullable=False),
        sa.Column("base_fingerprint", sa.String(length=71), nullable=False),
        sa.Column("method", sa.String(length=32), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("domain", sa.String(length=200), nullable=False),
        sa.Column("card", sa.JSON(), nullable=False),
        sa.Column("search", sa.Text(), nullable=False),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("weights_blob", sa.String(length=71), nullable=False),
        sa.Column("dtype", sa.String(length=8), nullable=False),
        sa.Column("parameters", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sample", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("sample_digest", sa.String(length=71), nullable=True),
        sa.Column("sample_state", sa.String(length=16), nullable=False),
        sa.Column("recipe_digest", sa.String(length=71), nullable=True),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("retired_at", sa.BigInteger(), nullable=True),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.CheckConstraint("kind IN ('adapter', 'soup')", name=op.f("ck_adapters_kind")),
        sa.CheckConstraint(
            "sample_state IN ('none', 'pending', 'ready', 'failed')", name=op.f("ck_adapters_sample_state")
        ),
        sa.ForeignKeyConstraint(["weights_blob"], ["blobs.digest"], name=op.f("fk_adapters_weights_blob")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapters")),
        sa.UniqueConstraint("namespace", "name", "version", name=op.f("uq_adapters_namespace_name_version")),
    )
    op.create_index(op.f("ix_adapters_base_fingerprint"), "adapters", ["base_fingerprint"], unique=False)
    op.create_index(op.f("ix_adapters_digest"), "adapters", ["digest"], unique=False)
    op.create_index(op.f("ix_adapters_recipe_digest"), "adapters", ["recipe_digest"], unique=False)
    op.create_index(op.f("ix_adapters_sample_digest"), "adapters", ["sample_digest"], unique=False)
    op.create_index(op.f("ix_adapters_weights_blob"), "adapters", ["weights_blob"], unique=False)
    op.create_table(
        "blob_grants",
        sa.Column("namespace", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.ForeignKeyConstraint(["digest"], ["blobs.digest"], name=op.f("fk_blob_grants_digest")),
        sa.PrimaryKeyConstraint("namespace", "digest", name=op.f("pk_blob_grants")),
    )
    op.create_table(
        "embeddings",
        sa.Column("sample_digest", sa.String(length=71), nullable=False),
        sa.Column("encoder_digest", sa.String(length=71), nullable=False),
        sa.Column("encoder_name", sa.String(length=32), nullable=False),
        sa.Column("unit", sa.String(length=16), nullable=False),
        sa.Column("blob_digest", sa.String(length=71), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("dimensions", sa.Integer(), nullable=False),
        sa.Column("truncated", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["blob_digest"], ["blobs.digest"], name=op.f("fk_embeddings_blob_digest")),
        sa.PrimaryKeyConstraint("sample_digest", "encoder_digest", name=op.f("pk_embeddings")),
    )
    op.create_table(
        "recipes",
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("recipe", sa.JSON(), nullable=False),
        sa.Column("adapter_digest", sa.String(length=71), nullable=False),
        sa.Column("weights_blob", sa.String(length=71), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["weights_blob"], ["blobs.digest"], name=op.f("fk_recipes_weights_blob")),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_recipes")),
    )
    op.create_table(
        "selectors",
        sa.Column("sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("pool_id", sa.String(length=71), nullable=False),
        sa.Column("pool", sa.JSON(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("spec_digest", sa.String(length=71), nullable=False),
        sa.Column("encoder_digest", sa.String(length=71), nullable=True),
        sa.Column("base_fingerprint", sa.String(length=71), nullable=False),
        sa.Column("state_blob", sa.String(length=71), nullable=False),
        sa.Column("members", sa.JSON(), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        sa.Column("fitted_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["state_blob"], ["blobs.digest"], name=op.f("fk_selectors_state_blob")),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_selectors")),
        sa.UniqueConstraint("id", name=op.f("uq_selectors_id")),
    )
    op.create_index("ix_selectors_base_fingerprint", "selectors", ["base_fingerprint"], unique=False)
    op.create_table(
        "selector_namespaces",
        sa.Column("selector", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("namespace", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["selector"], ["selectors.sequence"], name=op.f("fk_selector_namespaces_selector")),
        sa.PrimaryKeyConstraint("selector", "namespace", name=op.f("pk_selector_namespaces")),
    )
    op.create_table(
        "selector_targets",
        sa.Column("pool_id", sa.String(length=71), nullable=False),
        sa.Column("spec_digest", sa.String(length=71), nullable=False),
        sa.Column("selector", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.ForeignKeyConstraint(["selector"], ["selectors.sequence"], name=op.f("fk_selector_targets_selector")),
        sa.PrimaryKeyConstraint("pool_id", "spec_digest", name=op.f("pk_selector_targets")),
    )
    op.create_table(
        "adapter_tags",
        sa.Column("adapter_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("tag", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name=op.f("fk_adapter_tags_adapter_id")),
        sa.PrimaryKeyConstraint("adapter_id", "tag", name=op.f("pk_adapter_tags")),
    )
    op.create_index("ix_adapter_tags_tag", "adapter_tags", ["tag"], unique=False)
    op.create_table(
        "evidence",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("adapter_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("recipe_digest", sa.String(length=71), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name=op.f("fk_evidence_adapter_id")),
        sa.ForeignKeyConstraint(["recipe_digest"], ["recipes.digest"], name=op.f("fk_evidence_recipe_digest")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evidence")),
    )
    op.create_index(op.f("ix_evidence_adapter_id"), "evidence", ["adapter_id"], unique=False)
    op.create_table(
        "recipe_ingredients",
        sa.Column("recipe_digest", sa.String(length=71), nullable=False),
        sa.Column("adapter_digest", sa.String(length=71), nullable=False),
        sa.Column("weight", sa.String(length=16), nullable=False),
        sa.ForeignKeyConstraint(
            ["recipe_digest"], ["recipes.digest"], name=op.f("fk_recipe_ingredients_recipe_digest")
        ),
        sa.PrimaryKeyConstraint("recipe_digest", "adapter_digest", name=op.f("pk_recipe_ingredients")),
    )
    op.create_index("ix_recipe_ingredients_adapter_digest", "recipe_ingredients", ["adapter_digest"], unique=False)


def downgrade() -> None:
    """Drop every table."""

    op.drop_index("ix_recipe_ingredients_adapter_digest", table_name="recipe_ingredients")
    op.drop_table("recipe_ingredients")
    op.drop_index(op.f("ix_evidence_adapter_id"), table_name="evidence")
    op.drop_table("evidence")
    op.drop_index("ix_adapter_tags_tag", table_name="adapter_tags")
    op.drop_table("adapter_tags")
    op.drop_table("selector_targets")
    op.drop_table("selector_namespaces")
    op.drop_index("ix_selectors_base_fingerprint", table_name="selectors")
    op.drop_table("selectors")
    op.drop_table("recipes")
    op.drop_table("embeddings")
    op.drop_table("blob_grants")
    op.drop_index(op.f("ix_adapters_weights_blob"), table_name="adapters")
    op.drop_index(op.f("ix_adapters_sample_digest"), table_name="adapters")
    op.drop_index(op.f("ix_adapters_recipe_digest"), table_name="adapters")
    op.drop_index(op.f("ix_adapters_digest"), table_name="adapters")
    op.drop_index(op.f("ix_adapters_base_fingerprint"), table_name="adapters")
    op.drop_table("adapters")
    op.drop_table("keys")
    op.drop_index("ix_jobs_state_run_after", table_name="jobs")
    op.drop_index("ix_jobs_dedupe_key", table_name="jobs")
    op.drop_table("jobs")
    op.drop_table("blobs")
    op.drop_table("audit")
    op.drop_table("aliases")
