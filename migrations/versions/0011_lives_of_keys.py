"""When a key was last used, and the secrets that it had before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column and the table."""
    op.add_column("keys", sa.Column("last_used_at", sa.BigInteger(), nullable=True))
    op.create_table(
        "former_secrets",
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["keys.id"], name=op.f("fk_former_secrets_key_id")),
        sa.PrimaryKeyConstraint("secret_sha256", name=op.f("pk_former_secrets")),
    )
    op.create_index(op.f("ix_former_secrets_key_id"), "former_secrets", ["key_id"])


def downgrade() -> None:
    """Drop them. The column goes by itself: a copy of the table would lose its checks on SQLite."""
    op.drop_index(op.f("ix_former_secrets_key_id"), table_name="former_secrets")
    op.drop_table("former_secrets")
    op.drop_column("keys", "last_used_at")
