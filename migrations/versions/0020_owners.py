"""Owners of adapters, and loss curves of training jobs; servers of the previous release ignore both."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

LIVE = sa.text("retired_at IS NULL")


def upgrade() -> None:
    """Add the column, its index, and the table, whose rows are deleted with their job."""
    op.add_column("adapters", sa.Column("owner", sa.String(length=200), nullable=True))
    op.create_index(
        op.f("ix_adapters_live_owner"), "adapters", ["owner", "id"], sqlite_where=LIVE, postgresql_where=LIVE
    )
    op.create_table(
        "job_curves",
        sa.Column("job", sa.String(length=32), nullable=False),
        sa.Column("curve", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_job_curves_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job", name=op.f("pk_job_curves")),
    )


def downgrade() -> None:
    """Drop the table, the index and the column, with all owners and curves."""
    op.drop_table("job_curves")
    op.drop_index(op.f("ix_adapters_live_owner"), table_name="adapters")
    op.drop_column("adapters", "owner")
