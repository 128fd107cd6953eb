"""Which version each server is of, so that an upgrade of a fleet is seen. Servers of the release before say none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, empty of servers that are there."""
    op.add_column("replicas", sa.Column("version", sa.String(length=32), nullable=True))
    op.add_column("replicas", sa.Column("revision", sa.String(length=32), nullable=True))


def downgrade() -> None:
    """Drop them: no server says its version."""
    op.drop_column("replicas", "revision")
    op.drop_column("replicas", "version")
