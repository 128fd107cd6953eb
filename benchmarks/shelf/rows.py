"""A catalogue of many adapters: copies of one that was pushed, under names, domains, tags and cards of their own.

Rows are written in bulk, as `soup restore` writes them; words and indexes are those that pushes would have made.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, islice
from typing import Any

from sqlalchemy import insert

from registry.catalogue import Database
from registry.catalogue.adapters import columns_of
from registry.catalogue.rows import NewAdapter
from registry.catalogue.tables import adapter_tags, adapters
from registry.catalogue.words import adapter_words, indexed
from registry.names import sha256_digest
from registry.spec import Card, Provenance

NAMESPACES, DOMAINS, TAGS, WORDS = 200, 2_000, 500, 4_000
COMMON = "common"
"""A tag that every fifth adapter has, and a word that stands in every second card."""
RARE_TAG, RARE_WORD = 97, 10_007
"""One in this many adapters has the tag and the word `rare`."""
PROVENANCE = "x" * 4_000
"""A long training record, which lists do not show."""
PART = 2_000


def fill(database: Database, pushed: NewAdapter, amount: int) -> None:
    """Add copies of an adapter whose blob is stored."""
    copies = _copies(pushed, amount)
    while chunk := list(islice(copies, PART)):
        with database.engine.connect().execution_options(soup_mode="write") as connection, connection.begin():
            keys = connection.execute(
                insert(adapters).returning(adapters.c.id, sort_by_parameter_order=True),
                [{**columns_of(new), "version": 1} for new in chunk],
            ).scalars()
            rows = list(zip(keys, chunk, strict=True))
            tags = [{"adapter_id": id, "tag": tag} for id, new in rows for tag in new.card.tags]
            words = [{"adapter_id": id, "words": indexed(new)} for id, new in rows]
            connection.execute(insert(adapter_tags), tags)
            connection.execute(insert(adapter_words), words)


def vocabulary() -> list[str]:
    """Words of two to four syllables, from a fixed seed."""
    draw = random.Random(1)
    syllables = [first + second for first in "bcdfghklmnprstvw" for second in ("a", "e", "i", "o", "u", "or", "an")]
    return ["".join(draw.choices(syllables, k=draw.randint(2, 4))) for _ in range(WORDS)]


def domain(words: list[str], number: int) -> str:
    """One of the domains."""
    return f"{words[number]} {words[number % 7]}"


def _copies(pushed: NewAdapter, amount: int) -> Iterator[NewAdapter]:
    draw, words = random.Random(2), vocabulary()
    shares = list(accumulate(1 / (place + 1) for place in range(len(words))))  # few are common, as in any text
    for number in range(amount):
        text = draw.choices(words, cum_weights=shares, k=30)
        text += [COMMON] if number % 2 else []
        text += ["rare"] if number % RARE_WORD == 0 else []
        tags = {f"t{draw.randrange(TAGS)}", *(tag for tag, of in ((COMMON, 5), ("rare", RARE_TAG)) if number % of == 0)}
        yield replace(
            pushed,
            namespace=f"team{number % NAMESPACES}",
            name=f"a{number}",
            kind="soup" if number % 10 == 9 else "adapter",
            domain=domain(words, number % DOMAINS),
            digest=sha256_digest(str(number).encode()),
            card=Card(description=" ".join(text), tags=tuple(sorted(tags))),
            provenance=Provenance(training={"notes": PROVENANCE}),
        )


def described(row: Any) -> NewAdapter:
    """The pushed adapter to copy, without its sample."""
    names = NewAdapter.__dataclass_fields__
    return NewAdapter(**{name: getattr(row, name) for name in names} | {"sample": None, "sample_state": "none"})
