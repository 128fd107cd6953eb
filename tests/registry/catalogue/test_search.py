"""Searching adapters: words alike on both databases, tags, names; what keeps the index. That it is used: test_plans."""

from __future__ import annotations

from typing import Any

import pytest

from registry.catalogue import Catalogue
from registry.catalogue.words import LONGEST_WORD, MOST_BYTES, indexed, words_of
from registry.errors import InvalidName, InvalidParameter
from registry.spec import Card
from tests.registry.catalogue_rows import add, new_adapter


def matches(catalogue: Catalogue, visible: tuple[str, ...] | None = None, **filters: Any) -> list[str]:
    return [row.ref for row in catalogue.adapters.list(visible, limit=100, **filters).rows]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Law, law and LAWYER", ["law", "and", "lawyer"]),
        ("under_score v2.1-beta", ["under", "score", "v2", "1", "beta"]),
        ("Straße STRASSE", ["strasse"]),
        ("\u00e9 e\u0301", ["\u00e9"]),
        ("ﬁne ２０２６", ["fine", "2026"]),
        ("契約法 です", ["契", "約", "法", "で", "す"]),
        ("भारत की", ["भरत", "क"]),
        ("co\u00adoperate zero\u200bwidth", ["cooperate", "zerowidth"]),
        ("% _ ' \" \0 ・ ⚖", []),
        ("x" * 100, ["x" * LONGEST_WORD]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_of_an_endless_card_the_first_words_are_indexed() -> None:
    """PostgreSQL takes about a megabyte; a ligature can become eighteen letters."""
    wide = "".join(chr(0x4E00 + number % 20_000) for number in range(15_000)) + "".join(map(chr, range(0xFB50, 0xFDFB)))
    row = new_adapter(card=Card(description=wide, metadata={f"k{n}": f"{n} " * 300 for n in range(64)}))
    assert len(indexed(row).encode()) < MOST_BYTES + 1_000


@pytest.mark.parametrize(
    ("q", "yes"),
    [
        ("law", True),
        ("LAW", True),
        ("la", True),
        ("acme/law", True),
        ("acme", True),
        ("aw", False),
        ("laws", False),
        ("ärzte", True),
        ("ÄRZTE", True),
        ("STRASSE", True),
        ("straße", True),
        ("ИВ", True),
        ("under_score", True),
        ("underxscore", False),
        ("100%", True),
        ("back\\slash", True),
        ("slash back", True),
        ("back nothing", False),
        ("mit", True),
        ("v2", True),
        ("ana", True),
        ("trained_by", True),
        ("法約", True),
        ("'; DROP TABLE adapters; --", True),
        ('"law" OR "nothing"', False),
        ("law NOT drop", False),
        ("law*", True),
        ("kind=adapter", False),
        ("law:* | x", False),
        ("NEAR(law drop)", False),
        ("\0law\0", True),
    ],
)
def test_q_finds_words_and_their_beginnings_in_all_that_is_said(catalogue: Catalogue, q: str, yes: bool) -> None:
    add(
        catalogue,
        "acme/law",
        domain="Ärzte in der Straße",
        card=Card(
            description="100% under_score back\\slash '; DROP TABLE adapters; -- иван 契約法",
            license="MIT",
            tags=("v2",),
            metadata={"trained_by": "Ana", "seed": 1},
        ),
    )
    assert bool(matches(catalogue, q=q)) is yes
    assert bool(matches(catalogue, ("acme",), q=q, tags=["v2"])) is yes


@pytest.mark.parametrize("q", ["", "%", "_", " ", "'", '"', "*", "\0"])
def test_a_q_without_words_is_refused(catalogue: Catalogue, q: str) -> None:
    with pytest.raises(InvalidParameter, match="no letter or digit"):
        matches(catalogue, q=q)


def test_a_q_is_bounded_and_the_longest_is_answered(catalogue: Catalogue) -> None:
    row = add(catalogue, description=" ".join(map(chr, range(97, 123))))
    with pytest.raises(InvalidParameter, match="200 characters"):
        matches(catalogue, q="x" * 201)
    longest = " ".join(chr(97 + n % 26) for n in range(100))
    many = tuple(f"team{n}" for n in range(300))
    assert matches(catalogue, (*many, "acme"), q=longest) == [row.ref]
    assert matches(catalogue, many, q=longest) == []
    assert matches(catalogue, (), q="law") == []


def test_tags_hold_all_together(catalogue: Catalogue) -> None:
    add(catalogue, "acme/a", tags=("x", "y"))
    add(catalogue, "acme/b", tags=("x",))
    add(catalogue, "other/c", tags=("y", "x", "z.1"))
    for scope, filters, expected in (
        (None, {"tags": ["x"]}, ["other/c@1", "acme/b@1", "acme/a@1"]),
        (None, {"tags": ["x", "y", "x"]}, ["other/c@1", "acme/a@1"]),
        (("acme",), {"tags": ["y", "x"]}, ["acme/a@1"]),
        (None, {"tags": ["x", "z.1"], "q": "c"}, ["other/c@1"]),
        (None, {"tags": ["x", "none"]}, []),
    ):
        assert matches(catalogue, scope, **filters) == expected, (scope, filters)
    with pytest.raises(InvalidParameter, match="9 tags"):
        matches(catalogue, tags=[f"t{n}" for n in range(9)])
    with pytest.raises(InvalidName, match="tag"):
        matches(catalogue, tags=['x" OR "y'])


def test_names_are_exact_and_of_a_namespace_where_one_is_said(catalogue: Catalogue) -> None:
    for name in ("acme/law", "acme/law", "acme/law-2", "other/law"):
        add(catalogue, name)
    for scope, filters, expected in (
        (None, {"name": "law"}, ["other/law@1", "acme/law@2", "acme/law@1"]),
        (None, {"name": "acme/law"}, ["acme/law@2", "acme/law@1"]),
        (None, {"namespace": "acme", "name": "law"}, ["acme/law@2", "acme/law@1"]),
        (None, {"name": "acme/law", "q": "law"}, ["acme/law@2", "acme/law@1"]),
        (None, {"namespace": "acme", "name": "other/law"}, []),
        (("acme",), {"name": "other/law"}, []),
        (("acme",), {"namespace": "other"}, []),
    ):
        assert matches(catalogue, scope, **filters) == expected, (scope, filters)
    for wrong in ("acme/", "/law", "a/b/c", "law@2", "Law", ""):
        with pytest.raises(InvalidName):
            matches(catalogue, name=wrong)


def test_values_that_nothing_has_find_nothing(catalogue: Catalogue) -> None:
    add(catalogue, tags=("x",))
    for wrong in ({"kind": '" OR "'}, {"method": "')"}, {"namespace": 'a" b'}, {"base_model": ""}, {"domain": '"'}):
        assert matches(catalogue, q="law", **wrong) == []
        assert matches(catalogue, tags=["x"], **wrong) == []


def test_what_is_said_later_is_found_and_what_is_no_longer_said_is_not(catalogue: Catalogue) -> None:
    row = add(catalogue, "acme/law", tags=("old",), description="before")
    catalogue.adapters.update_card(row.id, card=Card(description="after", tags=("new",)), domain="courts")
    for q, yes in (("before", False), ("old", False), ("after", True), ("new", True), ("courts", True), ("law", True)):
        assert bool(matches(catalogue, q=q)) is yes, q
    assert (matches(catalogue, tags=["old"]), matches(catalogue, tags=["new"])) == ([], [row.ref])
    retired = catalogue.adapters.retire(row.id)
    assert matches(catalogue, q="law") == []
    catalogue.adapters.restore(row.id)
    assert matches(catalogue, q="law") == [row.ref]
    catalogue.removals.purge(retired)
    assert matches(catalogue, q="law") == []
    assert add(catalogue, "acme/tax").ref == matches(catalogue, q="tax")[0]
