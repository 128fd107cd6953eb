"""Every row of every table at once: how one database becomes another, whichever kinds the two are of."""

from __future__ import annotations

from sqlalchemy import Connection, Table, delete, func, insert, select

from registry.catalogue.tables import metadata
from registry.progress import Progress, silent

ROWS = 500
"""Rows that are read and written at once."""


class Whole:
    """All tables of this version's schema; which revision that is stands in none of them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def is_empty(self) -> bool:
        """Whether no table has a row."""
        return all(self._connection.execute(select(table).limit(1)).first() is None for table in metadata.sorted_tables)

    def replace_by(self, other: Whole, progress: Progress = silent) -> None:
        """Hold what the other holds and nothing else; what is added later is numbered after it."""
        tables = metadata.sorted_tables
        for table in reversed(tables):
            self._connection.execute(delete(table))
        for number, table in enumerate(tables):
            progress(number, len(tables), f"rows of {table.name}")
            self._fill(table, other)
            self._count_on(table)
        progress(len(tables), len(tables), "rows are there")

    def _fill(self, table: Table, other: Whole) -> None:
        query = select(table).order_by(*table.primary_key)
        with other._connection.execution_options(yield_per=ROWS).execute(query) as found:
            for rows in found.mappings().partitions():
                self._connection.execute(insert(table), [dict(row) for row in rows])

    def _count_on(self, table: Table) -> None:
        """Have PostgreSQL's sequence go on after the numbers that were given; SQLite looks at the rows itself."""
        column = table.autoincrement_column
        if column is None or self._connection.dialect.name != "postgresql":
            return
        sequence = func.pg_get_serial_sequence(table.name, column.name)
        greatest = select(func.coalesce(func.max(column), 0)).scalar_subquery()
        # never back: setting it is not undone with the transaction, and the rows that it counted are
        after = func.greatest(func.nextval(sequence), greatest + 1)
        self._connection.execute(select(func.setval(sequence, after, False)))
