"""Statistics of adapters on their samples, and which of them a recipe's ingredients were mixed by."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the column."""
    op.create_table(
        "statistics",
        sa.Column("adapter_digest", sa.String(length=71), nullable=False),
        sa.Column("sample_digest", sa.String(length=71), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("blob_digest", sa.String(length=71), nullable=False),
        sa.Column("passages", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["blob_digest"], ["blobs.digest"], name=op.f("fk_statistics_blob_digest")),
        sa.PrimaryKeyConstraint("adapter_digest", "sample_digest", "kind", name=op.f("pk_statistics")),
    )
    op.create_index(op.f("ix_statistics_blob_digest"), "statistics", ["blob_digest"])
    op.add_column("recipe_ingredients", sa.Column("statistic", sa.String(length=71), nullable=True))
    op.create_index(op.f("ix_recipe_ingredients_statistic"), "recipe_ingredients", ["statistic"])


def downgrade() -> None:
    """Drop them. The column goes by itself: a copy of the table would lose its foreign key's name on SQLite."""
    op.drop_index(op.f("ix_recipe_ingredients_statistic"), table_name="recipe_ingredients")
    op.drop_column("recipe_ingredients", "statistic")
    op.drop_index(op.f("ix_statistics_blob_digest"), table_name="statistics")
    op.drop_table("statistics")
