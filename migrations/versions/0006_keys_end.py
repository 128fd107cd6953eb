"""When a key expires."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; the keys that are there do not expire."""
    op.add_column("keys", sa.Column("expires_at", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    """Drop the column, and revoke the keys that had an end: without it they would work for good."""
    op.execute("UPDATE keys SET revoked_at = expires_at WHERE expires_at IS NOT NULL AND revoked_at IS NULL")
    op.drop_column("keys", "expires_at")
