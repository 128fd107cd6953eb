"""Indexes for what the audit is asked for."""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_audit_action": ["action", "id"],
    "ix_audit_subject": ["subject", "id"],
    "ix_audit_namespace": ["namespace", "id"],
    "ix_audit_key_id": ["key_id", "id"],
    "ix_audit_at": ["at"],
}


def upgrade() -> None:
    """Add the indexes."""
    for name, columns in INDEXES.items():
        op.create_index(name, "audit", columns)


def downgrade() -> None:
    """Drop them."""
    for name in INDEXES:
        op.drop_index(name, table_name="audit")
