"""Probes of adapters and base models, by which `soup doctor` recognises a model on another server."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; adapters from before get their probe when `soup doctor` asks for it."""
    op.create_table(
        "probes",
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("probe", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_probes"),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("probes")
