"""Words that adapters are searched by: what becomes of their texts, what is asked for, and the index of each database.

Words are made here and not by the databases, so that a search finds the same on both: runs of letters and digits, in
the case and form that all ways to write a letter have in common. Where a script puts no spaces between its words each
character is one. The index has the words of an adapter and a mark of its namespace, which no word is like.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, FromClause, cast, column, literal, table
from sqlalchemy.dialects.postgresql import TSQUERY

from registry.catalogue.rows import Namespaces
from registry.catalogue.word_tables import WORDS_VECTOR, adapter_words
from registry.errors import InvalidParameter
from registry.spec import Card

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
_INDEX = table("adapter_words_index", column("rowid"), column("adapter_words_index"))


def words_of(text: str) -> list[str]:
    """The words of a text, each once, in its order."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    plain = "".join(one for one in folded if one.isascii() or unicodedata.category(one) not in UNWRITTEN)
    return list(dict.fromkeys(word[:LONGEST_WORD] for word in _WORD.findall(plain)))


def indexed(namespace: str, name: str, domain: str, card: Card) -> str:
    """What the index has of an adapter: the mark of its namespace, and the words of its name, domain, tags and card."""
    notes = (text for pair in card.metadata.items() for text in pair if isinstance(text, str))
    texts = (namespace, name, domain, *card.tags, card.license or "", card.description, *notes)
    return " ".join([_mark(namespace), *_bounded(words_of("\n".join(texts)))])


def searched(q: str) -> list[str]:
    """The words that a search text asks for; raises InvalidParameter for one that is too long or has none."""
    if len(q) > LONGEST_Q:
        raise InvalidParameter(f"A search text has at most {LONGEST_Q} characters.", param="q")
    words = words_of(q)
    if not words:
        raise InvalidParameter("The search text has no letter and no digit: there is nothing to look for.", param="q")
    return words


class Index(NamedTuple):
    """Where a database finds adapters by words: a table, its column of the adapter's id, and the condition."""

    table: FromClause
    id: ColumnElement[int]
    has_words: ColumnElement[bool]


def index_of(dialect: str, words: Sequence[str], visible: Namespaces) -> Index:
    """The index of a database, asked for adapters of these namespaces with words that begin with each of `words`."""
    marks = None if visible is None else [_mark(namespace) for namespace in visible]
    if dialect == "sqlite":
        asked = [f'"{word}"*' for word in words]
        if marks:
            asked.append("(" + " OR ".join(f'"{mark}"' for mark in marks) + ")")
        return Index(_INDEX, _INDEX.c.rowid, _INDEX.c.adapter_words_index.op("MATCH")(" AND ".join(asked)))
    asked = [f"'{word}':*" for word in words]
    if marks:
        asked.append("(" + " | ".join(f"'{mark}'" for mark in marks) + ")")
    query = cast(literal(" & ".join(asked)), TSQUERY)
    return Index(adapter_words, adapter_words.c.adapter_id, WORDS_VECTOR.op("@@")(query))


def _mark(namespace: str) -> str:
    return f"={namespace}"


def _bounded(words: Iterable[str]) -> Iterable[str]:
    """The first words, as many as an index takes."""
    size = 0
    for word in words:
        size += len(word.encode()) + 1
        if size > MOST_BYTES:
            return
        yield word
