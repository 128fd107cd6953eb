"""Versions of servers, to observe the upgrade of a fleet; servers of the previous release leave them empty."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, empty for existing servers."""
    op.add_column("replicas", sa.Column("version", sa.String(length=32), nullable=True))
    op.add_column("replicas", sa.Column("revision", sa.String(length=32), nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    op.drop_column("replicas", "revision")
    op.drop_column("replicas", "version")
