"""Copying of all rows of one database into another, of the same kind or not."""

from __future__ import annotations

from sqlalchemy import Column, Table, TableClause, column, delete, func, insert, select

from registry.catalogue.repository import TableGateway
from registry.catalogue.tables import metadata
from registry.progress import Progress, silent

ROWS = 500
"""Rows that are read and written at a time."""
SQLITE_SEQUENCE = TableClause("sqlite_sequence", column("name"), column("seq"))
"""SQLite's own table of the last id of each table with AUTOINCREMENT."""


class AllTables(TableGateway):
    """All tables of this version's schema, without the revision of the schema."""

    def is_empty(self) -> bool:
        """Return True if no table has a row."""
        return all(self._connection.execute(select(table).limit(1)).first() is None for table in metadata.sorted_tables)

    def replace_by(self, source: AllTables, progress: Progress = silent) -> None:
        """Replace all rows by those of `source`; ids of later rows continue after all that it has given."""
        tables = metadata.sorted_tables
        for table in reversed(tables):
            self._delete(table)
        for number, table in enumerate(tables):
            progress(number, len(tables), f"rows of {table.name}")
            self._copy(table, source)
            if table.autoincrement_column is not None:
                self._continue_ids(table.autoincrement_column, source)
        progress(len(tables), len(tables), "rows are there")

    def _copy(self, table: Table, source: AllTables) -> None:
        query = select(table).order_by(*table.primary_key)
        with source._connection.execution_options(yield_per=ROWS).execute(query) as result:
            for rows in result.mappings().partitions():
                self._connection.execute(insert(table), [dict(row) for row in rows])

    def _continue_ids(self, ids: Column[int], source: AllTables) -> None:
        """Have ids of later rows begin after all that `source` has given, also to rows that it no longer has."""
        table, last = ids.table, source._last_id(ids)
        if self._connection.dialect.name == "postgresql":
            sequence = func.pg_get_serial_sequence(table.name, ids.name)
            # never lower: a rollback restores the former rows but not the sequence
            after = func.greatest(func.nextval(sequence), last + 1)
            self._connection.execute(select(func.setval(sequence, after, False)))
        elif _is_numbered_once(table):
            self._connection.execute(delete(SQLITE_SEQUENCE).where(SQLITE_SEQUENCE.c.name == table.name))
            self._connection.execute(insert(SQLITE_SEQUENCE).values(name=table.name, seq=last))

    def _last_id(self, ids: Column[int]) -> int:
        """The greatest id that a table has given; of SQLite's other tables, the greatest that it has."""
        table, queries = ids.table, [select(func.max(ids))]
        if self._connection.dialect.name == "postgresql":
            queries.append(select(func.pg_sequence_last_value(func.pg_get_serial_sequence(table.name, ids.name))))
        elif _is_numbered_once(table):
            queries.append(select(SQLITE_SEQUENCE.c.seq).where(SQLITE_SEQUENCE.c.name == table.name))
        return max(self._connection.scalar(query) or 0 for query in queries)


def _is_numbered_once(table: Table) -> bool:
    """Return True if SQLite gives no id of a table twice."""
    return bool(table.dialect_options["sqlite"]["autoincrement"])
