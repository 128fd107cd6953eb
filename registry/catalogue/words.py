"""The index of words for the search of adapters: how texts are split into words, and the index of each database.

Texts are split here and not by the databases, so that both give the same results. A word is a run of letters and
digits, case-folded and normalized; in scripts without spaces each character is a word. The index also has a mark for
each value of a filter, which differs from every word. On PostgreSQL the column of words is a tsvector with an index; on
SQLite the index is a table that triggers maintain.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    DDL,
    BindParameter,
    Column,
    ColumnElement,
    ForeignKey,
    FromClause,
    Table,
    Text,
    cast,
    column,
    event,
    func,
    table,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import TSQUERY, TSVECTOR

from registry.catalogue.rows import DescribedAdapter
from registry.catalogue.tables import Id, metadata
from registry.errors import InvalidParameter
from registry.spec import Card


class Lexemes(TSVECTOR):
    """A tsvector that is written and read as a text of words, without PostgreSQL's own parser."""

    def bind_expression(self, bindvalue: BindParameter[Any]) -> ColumnElement[Any]:
        """The SQL that writes a text of words."""
        return func.array_to_tsvector(func.string_to_array(type_coerce(bindvalue, Text), " "))

    def column_expression(self, colexpr: ColumnElement[Any]) -> ColumnElement[Any]:
        """The SQL that reads the words, in the database's order."""
        return type_coerce(func.array_to_string(func.tsvector_to_array(colexpr), " "), Text)


adapter_words = Table(
    "adapter_words",
    metadata,
    Column("adapter_id", Id, ForeignKey("adapters.id"), primary_key=True, autoincrement=False),
    Column("words", Text().with_variant(Lexemes(), "postgresql"), nullable=False),
)
SQLITE_INDEX = (  # this tokenizer counts everything that is not ASCII as part of a word
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


LONGEST_Q = 200
"""Characters of a search text, at most."""
LONGEST_WORD = 64
"""Words are cut to this many characters."""
MOST_BYTES = 2**19
"""Bytes of an adapter's words in UTF-8, at most: PostgreSQL's limit for a row is about twice as high."""
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana and Chinese characters."""
IGNORED = ("Mn", "Mc", "Me", "Cf")
"""Unicode categories of characters that are dropped: combining marks and invisible characters."""
_WORD = re.compile(f"(?=[^\\W_])(?:[{UNSPACED}]|[^\\W_{UNSPACED}]+)")
MARKED = ("namespace", "kind", "method", "base_model")
"""Filters with marks in the index besides tags: columns of an adapter that never change."""
_INDEX = table("adapter_words_index", column("rowid"), column("adapter_words_index"))


def words_of(text: str) -> list[str]:
    """The distinct words of a text, in its order."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    plain = "".join(char for char in folded if char.isascii() or unicodedata.category(char) not in IGNORED)
    return list(dict.fromkeys(word[:LONGEST_WORD] for word in _WORD.findall(plain)))


def indexed(row: DescribedAdapter) -> str:
    """The index entry of an adapter: its words, and a mark for each value of a filter."""
    columns = {name: str(getattr(row, name)) for name in ("namespace", "name", "domain", "kind", "base_model")}
    return indexed_columns({**columns, "method": row.config.method}, row.card)


def indexed_columns(columns: Mapping[str, str], card: Card) -> str:
    """The index entry of an adapter by the columns of its row."""
    metadata_texts = (text for item in card.metadata.items() for text in item if isinstance(text, str))
    names = (columns["namespace"], columns["name"], columns["domain"])
    texts = (*names, *card.tags, card.license or "", card.description, *metadata_texts)
    marks = [mark(name, columns[name]) for name in MARKED] + [mark("tag", tag) for tag in card.tags]
    entry = {*marks, *_bounded(words_of("\n".join(texts)))}
    return " ".join(sorted(entry, key=str.encode))  # PostgreSQL's order, so that a copy is the same on both


def searched(q: str | None) -> list[str]:
    """The words of a search text, none for None; raises InvalidParameter for a text without any word.

    An empty text is refused too, since it may come from an empty variable and should not match everything.
    """
    if q is None:
        return []
    if len(q) > LONGEST_Q:
        raise InvalidParameter(f"A search text has at most {LONGEST_Q} characters.", param="q")
    words = words_of(q)
    if not words:
        raise InvalidParameter("The search text has no letter or digit to look for.", param="q")
    return words


class WordIndex(NamedTuple):
    """The index to search: a table, its column of the adapter's id, and the condition that a row matches."""

    table: FromClause
    id: ColumnElement[int]
    matches: ColumnElement[bool]


def sqlite_index(words: Sequence[str], marks: Sequence[Sequence[str]]) -> WordIndex:
    """Adapters with a word that begins with each of `words`, and with one mark of each group of `marks`."""
    terms = [f'"{word}"*' for word in words]
    terms += ["(" + " OR ".join(f'"{value}"' for value in group) + ")" for group in marks]
    return WordIndex(_INDEX, _INDEX.c.rowid, _INDEX.c.adapter_words_index.op("MATCH")(" AND ".join(terms)))


def postgresql_index(words: Sequence[str]) -> WordIndex:
    """Adapters with a word that begins with each of `words`."""
    query = cast(" & ".join(f"'{word}':*" for word in words), TSQUERY)
    return WordIndex(adapter_words, adapter_words.c.adapter_id, adapter_words.c.words.op("@@")(query))


def mark(name: str, value: str) -> str:
    """The mark of a filter's value in the index; no word begins with its first character."""
    return f"={name}={value}"


def _bounded(words: Iterable[str]) -> Iterable[str]:
    """The first words, with at most MOST_BYTES in all."""
    size = 0
    for word in words:
        size += len(word.encode()) + 1
        if size > MOST_BYTES:
            return
        yield word
