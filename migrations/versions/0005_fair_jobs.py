"""Turns of namespaces among the jobs, who else asked for one, when it ran, and whose fault its failures were."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

COUNTS = ("failures", "crashes", "reached")
MOMENTS = ("started_at", "finished_at")


def upgrade() -> None:
    """Add the tables and columns; what has ended did so when it last changed, and lost tries count as failures."""
    op.create_table(
        "job_turns",
        sa.Column("lane", sa.String(length=16), nullable=False),
        sa.Column("namespace", sa.String(length=64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("lane", "namespace", name=op.f("pk_job_turns")),
    )
    op.create_table(
        "job_askers",
        sa.Column("job", sa.String(length=32), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=True),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["jobs.id"], name=op.f("fk_job_askers_job")),
        sa.PrimaryKeyConstraint("job", "key_id", name=op.f("pk_job_askers")),
    )
    for name in COUNTS:
        op.add_column("jobs", sa.Column(name, sa.Integer(), server_default=sa.text("0"), nullable=False))
    for name in MOMENTS:
        op.add_column("jobs", sa.Column(name, sa.BigInteger(), nullable=True))
    op.create_index(op.f("ix_jobs_kind_state"), "jobs", ["kind", "state"])
    op.execute("UPDATE jobs SET finished_at = updated_at WHERE state IN ('succeeded', 'failed', 'cancelled')")
    op.execute("UPDATE jobs SET failures = attempts WHERE state = 'queued'")
    op.execute("UPDATE jobs SET failures = attempts - 1 WHERE state = 'running' AND attempts > 0")


def downgrade() -> None:
    """Drop them."""
    op.drop_index(op.f("ix_jobs_kind_state"), table_name="jobs")
    for name in (*MOMENTS, *COUNTS):
        op.drop_column("jobs", name)
    op.drop_table("job_askers")
    op.drop_table("job_turns")
