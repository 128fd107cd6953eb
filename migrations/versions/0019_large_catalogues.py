"""Indexes for lists of keys, oldest first, and for jobs that ended long ago."""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the indexes."""
    op.create_index("ix_keys_created_at", "keys", ["created_at", "id"])
    op.create_index("ix_jobs_finished_at", "jobs", ["finished_at"])


def downgrade() -> None:
    """Drop them."""
    op.drop_index("ix_jobs_finished_at", table_name="jobs")
    op.drop_index("ix_keys_created_at", table_name="keys")
