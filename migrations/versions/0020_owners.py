"""Who answers for an adapter, and the curve of a job that trains. Servers of the release before do without either."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

LIVE = sa.text("retired_at IS NULL")


def upgrade() -> None:
    """Add the columns, and the index that lists by owner are read by."""
    op.add_column("adapters", sa.Column("owner", sa.String(length=200), nullable=True))
    op.create_index(
        op.f("ix_adapters_live_owner"), "adapters", ["owner", "id"], sqlite_where=LIVE, postgresql_where=LIVE
    )


def downgrade() -> None:
    """Drop them: nobody is said to answer for anything."""
    op.drop_index(op.f("ix_adapters_live_owner"), table_name="adapters")
    op.drop_column("adapters", "owner")
