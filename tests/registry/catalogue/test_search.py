"""Searching adapters: words alike on both databases, tags, names; what keeps the index, and that it is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import event, insert

from registry.catalogue import Catalogue, Database
from registry.catalogue.adapters import columns_of
from registry.catalogue.tables import adapter_tags, adapters
from registry.catalogue.words import LONGEST_WORD, MOST_BYTES, adapter_words, indexed, words_of
from registry.errors import InvalidName, InvalidParameter
from registry.spec import Card
from tests.registry.catalogue_rows import add, new_adapter

ROWS = 1_500
UNSETTLED = "SELECT relname FROM pg_class WHERE relname LIKE 'adapter%%' AND relkind = 'r' AND relallvisible < relpages"
"""Tables of which a plan's cost still depends on when it is made."""
FILLER = " ".join(f"filler{n}" for n in range(60))


def found(catalogue: Catalogue, visible: tuple[str, ...] | None = None, **filters: Any) -> list[str]:
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
        ("law", True), ("LAW", True), ("la", True), ("acme/law", True), ("acme", True), ("aw", False), ("laws", False),
        ("ärzte", True), ("ÄRZTE", True), ("STRASSE", True), ("straße", True), ("ИВ", True), ("under_score", True),
        ("underxscore", False), ("100%", True), ("back\\slash", True), ("slash back", True), ("back nothing", False),
        ("mit", True), ("v2", True), ("ana", True), ("trained_by", True), ("法約", True),
        ("'; DROP TABLE adapters; --", True), ('"law" OR "nothing"', False), ("law NOT drop", False), ("law*", True),
        ("kind=adapter", False), ("law:* | x", False), ("NEAR(law drop)", False), ("\0law\0", True),
    ],
)  # fmt: skip
def test_q_finds_words_and_their_beginnings_in_all_that_is_said(catalogue: Catalogue, q: str, yes: bool) -> None:
    add(
        catalogue, "acme/law", domain="Ärzte in der Straße",
        card=Card(
            description="100% under_score back\\slash '; DROP TABLE adapters; -- иван 契約法", license="MIT",
            tags=("v2",), metadata={"trained_by": "Ana", "seed": 1},
        ),
    )  # fmt: skip
    assert bool(found(catalogue, q=q)) is yes
    assert bool(found(catalogue, ("acme",), q=q, tags=["v2"])) is yes


@pytest.mark.parametrize("q", ["", "%", "_", " ", "'", '"', "*", "\0"])
def test_a_q_without_words_is_refused(catalogue: Catalogue, q: str) -> None:
    with pytest.raises(InvalidParameter, match="no letter and no digit"):
        found(catalogue, q=q)


def test_a_q_is_bounded_and_the_longest_is_answered(catalogue: Catalogue) -> None:
    row = add(catalogue, description=" ".join(map(chr, range(97, 123))))
    with pytest.raises(InvalidParameter, match="200 characters"):
        found(catalogue, q="x" * 201)
    longest = " ".join(chr(97 + n % 26) for n in range(100))
    many = tuple(f"team{n}" for n in range(300))
    assert found(catalogue, (*many, "acme"), q=longest) == [row.ref]
    assert found(catalogue, many, q=longest) == []
    assert found(catalogue, (), q="law") == []


def test_tags_hold_all_together(catalogue: Catalogue) -> None:
    add(catalogue, "acme/a", tags=("x", "y"))
    add(catalogue, "acme/b", tags=("x",))
    add(catalogue, "other/c", tags=("y", "x", "z.1"))
    assert found(catalogue, tags=["x"]) == ["other/c@1", "acme/b@1", "acme/a@1"]
    assert found(catalogue, tags=["x", "y", "x"]) == ["other/c@1", "acme/a@1"]
    assert found(catalogue, ("acme",), tags=["y", "x"]) == ["acme/a@1"]
    assert found(catalogue, tags=["x", "z.1"], q="c") == ["other/c@1"]
    assert found(catalogue, tags=["x", "none"]) == []
    with pytest.raises(InvalidParameter, match="9 tags"):
        found(catalogue, tags=[f"t{n}" for n in range(9)])
    with pytest.raises(InvalidName, match="tag"):
        found(catalogue, tags=['x" OR "y'])


def test_names_are_exact_and_of_a_namespace_where_one_is_said(catalogue: Catalogue) -> None:
    for name in ("acme/law", "acme/law", "acme/law-2", "other/law"):
        add(catalogue, name)
    assert found(catalogue, name="law") == ["other/law@1", "acme/law@2", "acme/law@1"]
    assert found(catalogue, name="acme/law") == ["acme/law@2", "acme/law@1"]
    assert found(catalogue, namespace="acme", name="law") == found(catalogue, name="acme/law", q="law")
    assert found(catalogue, namespace="acme", name="other/law") == []
    assert found(catalogue, ("acme",), name="other/law") == []
    assert found(catalogue, ("acme",), namespace="other") == []
    for wrong in ("acme/", "/law", "a/b/c", "law@2", "Law", ""):
        with pytest.raises(InvalidName):
            found(catalogue, name=wrong)


def test_values_that_nothing_has_find_nothing(catalogue: Catalogue) -> None:
    add(catalogue, tags=("x",))
    for wrong in ({"kind": '" OR "'}, {"method": "')"}, {"namespace": 'a" b'}, {"base_model": ""}, {"domain": '"'}):
        assert found(catalogue, q="law", **wrong) == []
        assert found(catalogue, tags=["x"], **wrong) == []


def test_what_is_said_later_is_found_and_what_is_no_longer_said_is_not(catalogue: Catalogue) -> None:
    row = add(catalogue, "acme/law", tags=("old",), description="before")
    catalogue.adapters.update_card(row.id, card=Card(description="after", tags=("new",)), domain="courts")
    for q, yes in (("before", False), ("old", False), ("after", True), ("new", True), ("courts", True), ("law", True)):
        assert bool(found(catalogue, q=q)) is yes, q
    assert (found(catalogue, tags=["old"]), found(catalogue, tags=["new"])) == ([], [row.ref])
    retired = catalogue.adapters.retire(row.id)
    assert found(catalogue, q="law") == []
    catalogue.adapters.restore(row.id)
    assert found(catalogue, q="law") == [row.ref]
    catalogue.removals.purge(retired)
    assert found(catalogue, q="law") == []
    assert add(catalogue, "acme/tax").ref == found(catalogue, q="tax")[0]


# --- indexes ----------------------------------------------------------------------------------------


def rare(number: int, tag: str = "x") -> tuple[str, ...]:
    """The tag for one in forty."""
    return (tag,) if number % 40 == 0 else ()


@pytest.fixture(scope="module")
def shelf(databases, tmp_path_factory) -> Iterator[Database]:
    """A database with so many adapters that it pays to use an index."""
    with databases.new(tmp_path_factory.mktemp("shelf")) as database:
        with database.write() as catalogue:
            blob = add(catalogue, "acme/first").weights_blob
        made = [
            new_adapter(
                f"team{n % 150}/a{n}", domain=f"d{n % 100}", weights_blob=blob, tags=("common", *rare(n, "rare")),
                kind="soup" if rare(n) else "adapter", base_model="big" if rare(n) else "tiny",
                owner="few" if rare(n) else None,
                description=f"word{n} common {FILLER}",
            )
            for n in range(ROWS)
        ]  # fmt: skip
        with database.engine.begin() as connection:
            rows = [
                {**columns_of(new), "version": 1, "method": "lora" if rare(n) else "bottleneck"}
                for n, new in enumerate(made)
            ]
            connection.execute(insert(adapters), rows)
            ids = dict(connection.execute(adapters.select().with_only_columns(adapters.c.name, adapters.c.id)).all())
            connection.execute(insert(adapter_words), [{"adapter_id": ids[n.name], "words": indexed(n)} for n in made])
            tags = [{"adapter_id": ids[new.name], "tag": tag} for new in made for tag in new.card.tags]
            connection.execute(insert(adapter_tags), tags)
        if databases.kind == "postgresql":  # which does so by itself; SQLite is never asked to
            with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                # Rows count as visible to all, on which costs depend, once their commits are on the disk: VACUUM's too.
                for statement in ("SET synchronous_commit = on", "CHECKPOINT", "VACUUM ANALYZE"):
                    connection.exec_driver_sql(statement)
                assert connection.exec_driver_sql(UNSETTLED).all() == []
        yield database


def plan_of(database: Database, visible: tuple[str, ...] | None, filters: dict[str, Any]) -> tuple[str, str]:
    """The statement of a list, and the plan that the database makes of it."""
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.append((statement, parameters))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        with database.read() as catalogue:
            catalogue.adapters.list(visible, limit=2, **filters)
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
    statement, parameters = seen[-1]
    with database.engine.connect() as connection:
        how = "EXPLAIN QUERY PLAN " if database.engine.dialect.name == "sqlite" else "EXPLAIN "
        rows = connection.exec_driver_sql(how + statement, parameters)
        return statement, "\n".join(str(row[-1]) for row in rows)


@pytest.mark.parametrize(
    ("visible", "filters", "index"),
    [
        (None, {}, "ix_adapters_live"),
        (("team3",), {}, "ix_adapters_live_namespace"),
        (None, {"kind": "soup"}, "ix_adapters_live_kind"),
        (None, {"domain": "d7"}, "ix_adapters_live_domain"),
        (None, {"base_model": "big"}, "ix_adapters_live_base_model"),
        (None, {"method": "lora"}, "ix_adapters_live_method"),
        (None, {"owner": "few"}, "ix_adapters_live_owner"),
        (None, {"name": "a7"}, "ix_adapters_live_name"),
        (None, {"tags": ["rare"]}, "adapter_words_index|ix_adapter_tags_tag"),
        (None, {"tags": ["common"], "kind": "soup"}, "adapter_words_index|ix_adapters_live_kind"),
        (None, {"q": "word777"}, "adapter_words_index"),
        (None, {"q": "word1321", "tags": ["common"], "kind": "adapter"}, "adapter_words_index"),
        (None, {"q": "word1320", "tags": ["rare"], "kind": "soup"}, "adapter_words_index|pk_adapter_words"),  # of few
        (("team3", "team4"), {"q": "word1323"}, "adapter_words_index"),
    ],
    ids=str,
)  # fmt: skip
def test_lists_use_their_index_and_read_no_provenance(shelf: Database, visible: Any, filters: Any, index: str) -> None:
    statement, plan = plan_of(shelf, visible, filters)
    assert any(name in plan for name in index.split("|")), plan
    assert "provenance" not in statement
    assert "Seq Scan" not in plan
    if shelf.engine.dialect.name == "postgresql" and "q" not in filters:
        assert plan.replace("Index Scan using pk_adapters", "", 1).count("Index Scan") == 0, (
            "only a page's rows are read"
        )
    assert "TEMP B-TREE" not in plan, "SQLite sorts what it could read in order"
    assert "SCAN adapters" not in plan.replace("SCAN adapters USING INDEX", "")
