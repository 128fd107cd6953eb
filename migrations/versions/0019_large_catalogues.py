"""An index for lists of keys, oldest first."""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index."""
    op.create_index("ix_keys_created_at", "keys", ["created_at", "id"])


def downgrade() -> None:
    """Drop it."""
    op.drop_index("ix_keys_created_at", table_name="keys")
