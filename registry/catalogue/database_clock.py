"""The present moment as the database has it: servers whose own clocks differ agree on that one."""

from __future__ import annotations

from sqlalchemy import BigInteger, ColumnElement, Connection, literal_column

_CLOCKS = {
    "postgresql": "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
}


def database_clock(connection: Connection) -> ColumnElement[int]:
    """Microseconds since 1970, UTC; it goes on within a transaction."""
    return literal_column(_CLOCKS[connection.dialect.name], BigInteger)
