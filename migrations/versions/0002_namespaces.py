"""Settings of namespaces, and of every tuned soup the sample that it has learnt from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both; tuned soups that are there say in their provenance what they have learnt from."""
    op.create_table(
        "namespaces",
        sa.Column("namespace", sa.String(length=64), nullable=False),
        sa.Column("tuning", sa.String(length=16), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.CheckConstraint("tuning IN ('forbid', 'allow', 'default')", name=op.f("ck_namespaces_tuning")),
        sa.PrimaryKeyConstraint("namespace", name=op.f("pk_namespaces")),
    )
    op.add_column("adapters", sa.Column("tuned_on", sa.String(length=71), nullable=True))
    op.create_index(op.f("ix_adapters_tuned_on"), "adapters", ["tuned_on"], unique=False)
    _fill()


def _fill() -> None:
    connection = op.get_bind()
    adapters = sa.table(
        "adapters",
        sa.column("id", sa.BigInteger()),
        sa.column("provenance", sa.JSON()),
        sa.column("recipe_digest", sa.String()),
        sa.column("tuned_on", sa.String()),
    )
    soups = sa.select(adapters.c.id, adapters.c.provenance).where(adapters.c.recipe_digest.is_not(None))
    for id, provenance in connection.execute(soups).all():
        tuning = provenance.get("training", {}).get("tuning")
        if tuning is not None:  # what is pushed may say anything there, and has no recipe
            connection.execute(sa.update(adapters).where(adapters.c.id == id).values(tuned_on=tuning["sample"]))


def downgrade() -> None:
    """Drop both. The column goes by itself: a copy of the table would lose its checks on SQLite."""
    op.drop_index(op.f("ix_adapters_tuned_on"), table_name="adapters")
    op.drop_column("adapters", "tuned_on")
    op.drop_table("namespaces")
