"""Probes of adapters and base models, by which `soup doctor` recognises a model on another server."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; adapters get their probe when they are pushed again."""
    op.create_table(
        "probes",
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("base_fingerprint", sa.String(length=71), nullable=False),
        sa.Column("probe", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_probes"),
    )
    op.create_index("ix_probes_base_fingerprint", "probes", ["base_fingerprint"])


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("probes")
