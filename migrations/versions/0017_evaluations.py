"""How well adapters predict the samples of a pool."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "evaluations",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("adapter_digest", sa.String(length=71), nullable=False),
        sa.Column("sample_digest", sa.String(length=71), nullable=False),
        sa.Column("passages", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("nll", sa.Float(precision=53), nullable=False),
        sa.Column("base_nll", sa.Float(precision=53), nullable=False),
        sa.Column("standard_error", sa.Float(precision=53), nullable=False),
        sa.Column("created_by", sa.String(length=64), nullable=False),
        sa.Column("evaluated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evaluations")),
        sa.UniqueConstraint(
            "adapter_digest", "sample_digest", name=op.f("uq_evaluations_adapter_digest_sample_digest")
        ),
    )
    op.create_index(op.f("ix_evaluations_sample_digest"), "evaluations", ["sample_digest"])


def downgrade() -> None:
    """Drop it: what was evaluated is evaluated again where it is asked for."""
    op.drop_index(op.f("ix_evaluations_sample_digest"), table_name="evaluations")
    op.drop_table("evaluations")
