"""The words that adapters are searched by, as a table, and the index of it that each database has of its own.

Imported by `words`, which says what the words are: a text with spaces between them. On PostgreSQL the column is a
tsvector with an index; on SQLite the index is a table of its own, which triggers keep.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import DDL, BindParameter, Column, ColumnElement, ForeignKey, Table, Text, event, func, type_coerce
from sqlalchemy.dialects.postgresql import TSVECTOR

from registry.catalogue.tables import Id, metadata


class Lexemes(TSVECTOR):
    """A tsvector that is written and read as a text of words; PostgreSQL's own parser sees none of them."""

    def bind_expression(self, bindvalue: BindParameter[Any]) -> ColumnElement[Any]:
        """To the database."""
        return func.array_to_tsvector(func.string_to_array(type_coerce(bindvalue, Text), " "))

    def column_expression(self, colexpr: ColumnElement[Any]) -> ColumnElement[Any]:
        """From the database, in an order of its own."""
        return type_coerce(func.array_to_string(func.tsvector_to_array(colexpr), " "), Text)


adapter_words = Table(  # a row for each adapter
    "adapter_words",
    metadata,
    Column("adapter_id", Id, ForeignKey("adapters.id"), primary_key=True, autoincrement=False),
    Column("words", Text().with_variant(Lexemes(), "postgresql"), nullable=False),
)
SQLITE_INDEX = (  # what is not ASCII is part of a word
    """CREATE VIRTUAL TABLE adapter_words_index USING fts5(
        words, content='adapter_words', content_rowid='adapter_id', tokenize="ascii tokenchars '=.-_'", detail='none',
        prefix='1 2 3')""",
    """CREATE TRIGGER adapter_words_added AFTER INSERT ON adapter_words BEGIN
        INSERT INTO adapter_words_index (rowid, words) VALUES (new.adapter_id, new.words); END""",
    """CREATE TRIGGER adapter_words_removed AFTER DELETE ON adapter_words BEGIN
        INSERT INTO adapter_words_index (adapter_words_index, rowid, words)
        VALUES ('delete', old.adapter_id, old.words); END""",
    """CREATE TRIGGER adapter_words_changed AFTER UPDATE ON adapter_words BEGIN
        INSERT INTO adapter_words_index (adapter_words_index, rowid, words)
        VALUES ('delete', old.adapter_id, old.words);
        INSERT INTO adapter_words_index (rowid, words) VALUES (new.adapter_id, new.words); END""",
)
POSTGRESQL_INDEX = ("CREATE INDEX adapter_words_index ON adapter_words USING gin (words) WITH (fastupdate = off)",)
for dialect, statements in (("sqlite", SQLITE_INDEX), ("postgresql", POSTGRESQL_INDEX)):
    for statement in statements:
        created = DDL(statement)  # type: ignore[no-untyped-call]
        event.listen(adapter_words, "after_create", created.execute_if(dialect=dialect))
