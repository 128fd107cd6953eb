"""Words that adapters are searched by: what becomes of their texts, what is asked for, and the index of each database.

Words are made here and not by the databases, so that a search finds the same on both: runs of letters and digits, in
the case and form that all ways to write a letter have in common. Where a script puts no spaces between its words each
character is one. The index also has a mark for each value that lists are filtered by, which no word is like. On
PostgreSQL the column of words is a tsvector with an index; on SQLite the index is a table, which triggers keep.
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


LONGEST_Q = 200
"""Characters of a search text."""
LONGEST_WORD = 64
"""Characters of a word that are looked at."""
MOST_BYTES = 2**19
"""Of an adapter's words, in UTF-8: PostgreSQL indexes no more than about twice as much of a row."""
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana and Chinese characters."""
UNWRITTEN = ("Mn", "Mc", "Me", "Cf")
"""Marks over and under letters that no letter has in itself, and characters that nobody sees: they are looked over."""
_WORD = re.compile(f"(?=[^\\W_])(?:[{UNSPACED}]|[^\\W_{UNSPACED}]+)")
MARKED = ("namespace", "kind", "method", "base_model")
"""Filters that the index has marks for, beside tags: what never changes of an adapter."""
_INDEX = table("adapter_words_index", column("rowid"), column("adapter_words_index"))


def words_of(text: str) -> list[str]:
    """The words of a text, each once, in its order."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    plain = "".join(one for one in folded if one.isascii() or unicodedata.category(one) not in UNWRITTEN)
    return list(dict.fromkeys(word[:LONGEST_WORD] for word in _WORD.findall(plain)))


def indexed(row: DescribedAdapter) -> str:
    """What the index has of an adapter: its words, and a mark for each value that lists are filtered by."""
    columns = {name: str(getattr(row, name)) for name in ("namespace", "name", "domain", "kind", "base_model")}
    return indexed_columns({**columns, "method": row.config.method}, row.card)


def indexed_columns(columns: Mapping[str, str], card: Card) -> str:
    """The same by the columns of its row."""
    notes = (text for pair in card.metadata.items() for text in pair if isinstance(text, str))
    named = (columns["namespace"], columns["name"], columns["domain"])
    texts = (*named, *card.tags, card.license or "", card.description, *notes)
    marks = [mark(name, columns[name]) for name in MARKED] + [mark("tag", tag) for tag in card.tags]
    found = {*marks, *_bounded(words_of("\n".join(texts)))}
    return " ".join(sorted(found, key=str.encode))  # as PostgreSQL has them, so that a copy is the same on both


def searched(q: str | None) -> list[str]:
    """The words that a search text asks for, none for None; raises InvalidParameter for a text without any word.

    An empty one is refused too: whoever's variable was empty did not ask for everything.
    """
    if q is None:
        return []
    if len(q) > LONGEST_Q:
        raise InvalidParameter(f"A search text has at most {LONGEST_Q} characters.", param="q")
    words = words_of(q)
    if not words:
        raise InvalidParameter("The search text has no letter and no digit: there is nothing to look for.", param="q")
    return words


class WordIndex(NamedTuple):
    """Where a database finds adapters by words: a table, its column of the adapter's id, and the condition."""

    table: FromClause
    id: ColumnElement[int]
    matches: ColumnElement[bool]


def sqlite_index(words: Sequence[str], marks: Sequence[Sequence[str]]) -> WordIndex:
    """Adapters with words that begin with each of `words`, and of each of the groups of `marks` with one of them."""
    asked = [f'"{word}"*' for word in words]
    asked += ["(" + " OR ".join(f'"{one}"' for one in group) + ")" for group in marks]
    return WordIndex(_INDEX, _INDEX.c.rowid, _INDEX.c.adapter_words_index.op("MATCH")(" AND ".join(asked)))


def postgresql_index(words: Sequence[str]) -> WordIndex:
    """Adapters with words that begin with each of `words`."""
    asked = cast(" & ".join(f"'{word}':*" for word in words), TSQUERY)
    return WordIndex(adapter_words, adapter_words.c.adapter_id, adapter_words.c.words.op("@@")(asked))


def mark(name: str, value: str) -> str:
    """What stands for the value of a filter, beside the words: none begins like it."""
    return f"={name}={value}"


def _bounded(words: Iterable[str]) -> Iterable[str]:
    """The first words, as many as an index takes."""
    size = 0
    for word in words:
        size += len(word.encode()) + 1
        if size > MOST_BYTES:
            return
        yield word
