"""The schema of release 0.9.0.

Servers of 0.1.0 ignore the new tables and the owners. They still write the columns for their routers, which get defaults
here and are dropped one release later.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0019"

LIVE = sa.text("retired_at IS NULL")
DEFAULTS: dict[str, tuple[sa.types.TypeEngine[Any], str]] = {
    "role": (sa.String(16), "all"),
    **{name: (sa.Integer(), "0") for name in ("places", "requests", "adapters")},
    **{name: (sa.BigInteger(), "0") for name in ("bank_bytes", "adapter_bytes", "started_at")},
}


def upgrade() -> None:
    """Add owners of adapters, curves of jobs, parts of uploads to a bucket, probes, and the defaults.

    Unfinished uploads to a bucket start again at 0.
    """
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
    op.create_table(
        "probes",
        sa.Column("digest", sa.String(length=71), nullable=False),
        sa.Column("probe", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_probes"),
    )
    with op.batch_alter_table("replicas") as table:
        for name, (type_, default) in DEFAULTS.items():
            table.alter_column(name, existing_type=type_, existing_nullable=False, server_default=default)


def downgrade() -> None:
    """Drop the column and the tables, with all their data, and the defaults."""
    with op.batch_alter_table("replicas") as table:
        for name, (type_, _) in DEFAULTS.items():
            table.alter_column(name, existing_type=type_, existing_nullable=False, server_default=None)
    for table in ("probes", "upload_parts", "job_curves"):
        op.drop_table(table)
    op.drop_index(op.f("ix_adapters_live_owner"), table_name="adapters")
    op.drop_column("adapters", "owner")
