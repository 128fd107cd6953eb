"""When the selector of a pool was last asked for."""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; what is there counts as asked for now, since nobody knows when it was."""
    op.add_column(
        "selector_targets", sa.Column("asked_at", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
    )
    targets = sa.table("selector_targets", sa.column("asked_at", sa.BigInteger()))
    moment = int(datetime.now(UTC).timestamp() * 1_000_000)
    op.get_bind().execute(sa.update(targets).values(asked_at=moment))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("selector_targets", "asked_at")
