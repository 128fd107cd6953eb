"""Limits of keys and namespaces, which key uploaded which blob, and what inference was used by day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the three tables, and an index of the adapters that a key made."""
    op.create_table(
        "limits",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(length=64), nullable=False),
        sa.Column("requests_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("tokens_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("stored_bytes", sa.BigInteger(), nullable=True),
        sa.Column("adapters", sa.BigInteger(), nullable=True),
        sa.Column("jobs", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("kind IN ('key', 'namespace')", name=op.f("ck_limits_kind")),
        sa.PrimaryKeyConstraint("kind", "subject", name=op.f("pk_limits")),
    )
    op.create_table(
        "blob_uploads",
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.PrimaryKeyConstraint("key_id", "digest", name=op.f("pk_blob_uploads")),
    )
    op.create_table(
        "usage",
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("namespace", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "key_id", "namespace", "model", name=op.f("pk_usage")),
    )
    op.create_index("ix_usage_key_id", "usage", ["key_id", "day"])
    op.create_index("ix_usage_namespace", "usage", ["namespace", "day"])
    op.create_index(op.f("ix_adapters_created_by"), "adapters", ["created_by"])


def downgrade() -> None:
    """Drop them."""
    op.drop_index(op.f("ix_adapters_created_by"), table_name="adapters")
    op.drop_table("usage")
    op.drop_table("blob_uploads")
    op.drop_table("limits")
