"""The words that adapters are searched by, as a table, and the index of it that each database has of its own.

Imported by `words`, which says what the words are. On PostgreSQL the index is one of an expression of the table; on
SQLite it is a table of its own, which triggers keep.
"""

from __future__ import annotations

from sqlalchemy import DDL, Column, ForeignKey, Table, Text, event, func, literal_column

from registry.catalogue.tables import Id, metadata

adapter_words = Table(  # a row for each adapter
    "adapter_words",
    metadata,
    Column("adapter_id", Id, ForeignKey("adapters.id"), primary_key=True, autoincrement=False),
    Column("words", Text, nullable=False),
)
WORDS_VECTOR = func.array_to_tsvector(func.string_to_array(adapter_words.c.words, literal_column("' '")))
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
POSTGRESQL_INDEX = (
    """CREATE INDEX adapter_words_index ON adapter_words
        USING gin (array_to_tsvector(string_to_array(words, ' '))) WITH (fastupdate = off)""",
)
for dialect, statements in (("sqlite", SQLITE_INDEX), ("postgresql", POSTGRESQL_INDEX)):
    for statement in statements:
        event.listen(adapter_words, "after_create", DDL(statement).execute_if(dialect=dialect))
