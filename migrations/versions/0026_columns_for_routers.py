"""Drop the columns of servers that release 0.1.0 wrote for its routers."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

COLUMNS: dict[str, tuple[sa.types.TypeEngine[Any], str | None]] = {
    "role": (sa.String(16), "all"),
    "url": (sa.String(300), None),
    **{name: (sa.Integer(), "0") for name in ("places", "requests", "adapters")},
    **{name: (sa.BigInteger(), "0") for name in ("bank_bytes", "adapter_bytes", "started_at")},
}
"""Type and default by name; a column without a default may be NULL."""


def upgrade() -> None:
    """Drop the columns, which 0.9.0 neither reads nor writes."""
    with op.batch_alter_table("replicas") as table:
        table.drop_constraint(op.f("ck_replicas_role"), type_="check")
        for name in COLUMNS:
            table.drop_column(name)


def downgrade() -> None:
    """Add the columns again, with their defaults."""
    with op.batch_alter_table("replicas") as table:
        for name, (type_, default) in COLUMNS.items():
            table.add_column(sa.Column(name, type_, nullable=default is None, server_default=default))
        table.create_check_constraint(op.f("ck_replicas_role"), "role IN ('all', 'api', 'worker')")
