"""Give the columns that servers wrote for routers defaults, and drop those that no release uses.

Servers of the last release still write these columns, so they get defaults here and are dropped one release later.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

DEFAULTS: dict[str, tuple[sa.types.TypeEngine[Any], str]] = {
    "role": (sa.String(16), "all"),
    **{name: (sa.Integer(), "0") for name in ("places", "requests", "adapters")},
    **{name: (sa.BigInteger(), "0") for name in ("bank_bytes", "adapter_bytes", "started_at")},
}


def upgrade() -> None:
    """Drop the columns that no release has used, and give the others defaults."""
    with op.batch_alter_table("replicas") as table:
        table.drop_column("revision")
        table.drop_column("version")
        for name, (type_, default) in DEFAULTS.items():
            table.alter_column(name, existing_type=type_, existing_nullable=False, server_default=default)


def downgrade() -> None:
    """Add the columns again, and remove the defaults."""
    with op.batch_alter_table("replicas") as table:
        for name, (type_, _) in DEFAULTS.items():
            table.alter_column(name, existing_type=type_, existing_nullable=False, server_default=None)
        table.add_column(sa.Column("version", sa.String(length=32), nullable=True))
        table.add_column(sa.Column("revision", sa.String(length=32), nullable=True))
