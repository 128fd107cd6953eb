"""Ids of adapters that are given once: SQLite gave the id of a purged newest version to the next one.

Jobs and selectors keep ids of purged versions, so that the next id is greater than all of these.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

ADAPTERS = sa.table("adapters", sa.column("id"))
PURGED = sa.table("purged_adapters")
JOBS = sa.table("jobs", sa.column("arguments", sa.JSON), sa.column("result", sa.JSON))
SELECTORS = sa.table("selectors", sa.column("members", sa.JSON))
SQLITE_SEQUENCE = sa.table("sqlite_sequence", sa.column("name"), sa.column("seq"))


def upgrade() -> None:
    """Rebuild the table on SQLite, where only AUTOINCREMENT does this, and continue after the last id."""
    connection, last = op.get_bind(), _last_id()
    if connection.dialect.name == "sqlite":
        # a later migration that rebuilds the table has to do all of this again: batches keep neither
        with op.batch_alter_table("adapters", recreate="always", table_kwargs={"sqlite_autoincrement": True}):
            pass
        connection.execute(sa.delete(SQLITE_SEQUENCE).where(SQLITE_SEQUENCE.c.name == "adapters"))
        connection.execute(sa.insert(SQLITE_SEQUENCE).values(name="adapters", seq=last))
    elif last:  # the rows may have come from SQLite
        sequence = sa.func.pg_get_serial_sequence("adapters", "id")
        connection.execute(sa.select(sa.func.setval(sequence, sa.func.greatest(sa.func.nextval(sequence), last))))


def downgrade() -> None:
    """Do nothing: the version before runs on the table as it is."""


def _last_id() -> int:
    """The greatest id that was ever given, as far as is known; 0 if there was none.

    SQLite gives the greatest id plus one. So there, ids are at most the number of versions, unless rows came from
    PostgreSQL.
    """
    connection = op.get_bind()
    ids = [connection.scalar(sa.select(sa.func.max(ADAPTERS.c.id)))]
    ids.append(sum(connection.scalar(sa.select(sa.func.count()).select_from(table)) for table in (ADAPTERS, PURGED)))
    for value in (JOBS.c.arguments["adapter_id"], JOBS.c.result["soup_id"]):
        ids.append(connection.scalar(sa.select(sa.func.max(sa.cast(value.as_string(), sa.BigInteger)))))
    for members in connection.scalars(sa.select(SELECTORS.c.members)):
        ids += [member["adapter_id"] for member in members]
    return max(id or 0 for id in ids)
