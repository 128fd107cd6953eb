"""Which folder of blobs a database belongs to, and how often servers started over the two."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; it is empty until a server starts."""
    op.create_table(
        "stores",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("store", sa.String(length=32), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_stores_one")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stores")),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("stores")
