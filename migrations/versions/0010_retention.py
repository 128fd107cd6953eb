"""Protected aliases, how long unnamed soups are kept, what was purged, which files are to go, and who names a blob."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

INDEXED = (
    ("blobs", "seen_at"),
    ("embeddings", "blob_digest"),
    ("selectors", "state_blob"),
    ("recipes", "weights_blob"),
    ("evidence", "recipe_digest"),
)


def upgrade() -> None:
    """Add two settings of namespaces, two tables, and the indexes."""
    op.add_column("namespaces", sa.Column("protected_aliases", sa.JSON(), nullable=True))
    op.add_column("namespaces", sa.Column("unnamed_soup_days", sa.Integer(), nullable=True))
    op.create_table(
        "purged_adapters",
        sa.Column("namespace", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("purged_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name", "version", name=op.f("pk_purged_adapters")),
    )
    op.create_index(op.f("ix_purged_adapters_digest"), "purged_adapters", ["digest"])
    op.create_table(
        "blob_removals",
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_blob_removals")),
    )
    for table, column in INDEXED:
        op.create_index(op.f(f"ix_{table}_{column}"), table, [column])


def downgrade() -> None:
    """Drop them. The columns go by themselves: a copy of the table would lose its checks on SQLite."""
    for table, column in INDEXED:
        op.drop_index(op.f(f"ix_{table}_{column}"), table_name=table)
    op.drop_table("blob_removals")
    op.drop_index(op.f("ix_purged_adapters_digest"), table_name="purged_adapters")
    op.drop_table("purged_adapters")
    op.drop_column("namespaces", "unnamed_soup_days")
    op.drop_column("namespaces", "protected_aliases")
