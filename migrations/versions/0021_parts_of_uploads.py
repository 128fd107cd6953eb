"""Parts of uploads that are stored as objects, so that any server can continue an upload."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; unfinished uploads to a bucket start again at 0."""
    op.create_table(
        "upload_parts",
        sa.Column("upload_id", sa.String(length=32), nullable=False),
        sa.Column("start", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("added_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["upload_sessions.id"], name="fk_upload_parts_upload_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("upload_id", "start", name="pk_upload_parts"),
    )


def downgrade() -> None:
    """Drop the table; unfinished uploads to a bucket start again at 0."""
    op.drop_table("upload_parts")
