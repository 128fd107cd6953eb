"""All rows of all tables, to copy one database into another, of the same kind or not."""

from __future__ import annotations

from sqlalchemy import Table, func, insert, select

from registry.catalogue.repository import TableGateway
from registry.catalogue.tables import metadata
from registry.progress import Progress, silent

ROWS = 500
"""Rows that are read and written at a time."""


class AllTables(TableGateway):
    """All tables of this version's schema, without the revision of the schema."""

    def is_empty(self) -> bool:
        """Return True if no table has a row."""
        return all(self._connection.execute(select(table).limit(1)).first() is None for table in metadata.sorted_tables)

    def replace_by(self, source: AllTables, progress: Progress = silent) -> None:
        """Replace all rows by those of `source`; ids of later rows continue after them."""
        tables = metadata.sorted_tables
        for table in reversed(tables):
            self._delete(table)
        for number, table in enumerate(tables):
            progress(number, len(tables), f"rows of {table.name}")
            self._copy(table, source)
            self._advance_sequence(table)
        progress(len(tables), len(tables), "rows are there")

    def _copy(self, table: Table, source: AllTables) -> None:
        query = select(table).order_by(*table.primary_key)
        with source._connection.execution_options(yield_per=ROWS).execute(query) as result:
            for rows in result.mappings().partitions():
                self._connection.execute(insert(table), [dict(row) for row in rows])

    def _advance_sequence(self, table: Table) -> None:
        """Have PostgreSQL's sequence continue after the copied ids; SQLite reads the rows itself."""
        column = table.autoincrement_column
        if column is None or self._connection.dialect.name != "postgresql":
            return
        sequence = func.pg_get_serial_sequence(table.name, column.name)
        greatest = select(func.coalesce(func.max(column), 0)).scalar_subquery()
        # never lower: a rollback restores the former rows but not the sequence
        after = func.greatest(func.nextval(sequence), greatest + 1)
        self._connection.execute(select(func.setval(sequence, after, False)))
