"""Turns of namespaces among the jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; nobody had a turn yet."""
    op.create_table(
        "job_turns",
        sa.Column("lane", sa.String(length=16), nullable=False),
        sa.Column("namespace", sa.String(length=64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("lane", "namespace", name=op.f("pk_job_turns")),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("job_turns")
