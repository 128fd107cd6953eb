"""Several servers: each with the beat that it still gives, and what keys and namespaces used of their rates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "replicas",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("url", sa.String(length=300), nullable=True),
        sa.Column("bases", sa.JSON(), nullable=False),
        sa.Column("places", sa.Integer(), nullable=False),
        sa.Column("bank_bytes", sa.BigInteger(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.Column("adapters", sa.Integer(), nullable=False),
        sa.Column("adapter_bytes", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("role IN ('all', 'api', 'worker')", name=op.f("ck_replicas_role")),
        sa.PrimaryKeyConstraint("id", name="pk_replicas"),
    )
    op.create_table(
        "rate_buckets",
        sa.Column("subject", sa.String(length=200), nullable=False),
        sa.Column("measure", sa.String(length=16), nullable=False),
        sa.Column("used", sa.Float(precision=53), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("subject", "measure", name="pk_rate_buckets"),
    )


def downgrade() -> None:
    """Drop them: the servers that run are known to nobody, and every rate is whole again."""
    op.drop_table("rate_buckets")
    op.drop_table("replicas")
