"""Statements over tables that grow with a company, as the database plans them: each by an index that suits it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event, insert

from registry.catalogue import Catalogue, Database
from registry.catalogue.adapters import columns_of
from registry.catalogue.repository import now
from registry.catalogue.tables import adapters, aliases, keys
from registry.names import DigestRef, NameRef, sha256_digest
from tests.registry.catalogue_rows import add, new_adapter

ROWS = 3_000
OWN = "pk_|uq_|ix_|sqlite_autoindex_"
"""Any index; SQLite names those of keys and constraints itself."""
Asks = Callable[[Catalogue], object]


@pytest.fixture(scope="module")
def full(databases, tmp_path_factory) -> Iterator[Database]:
    """A database in which it pays to use an index."""
    with databases.new(tmp_path_factory.mktemp("plans")) as database:
        with database.write() as catalogue:
            blob = add(catalogue, "acme/first").weights_blob
        made = [new_adapter(f"team{n % 50}/a{n}", weights_blob=blob) for n in range(ROWS)]
        with database.engine.begin() as connection:
            connection.execute(insert(adapters), [{**columns_of(new), "version": 1} for new in made])
            named = [{"namespace": new.namespace, "name": new.name, "alias": "prod", "version": 1} for new in made]
            connection.execute(insert(aliases), [{**one, "revision": 1} for one in named])
            connection.execute(insert(keys), list(map(key, range(ROWS))))
        if databases.kind == "postgresql":  # which does so by itself; SQLite is never asked to
            with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM ANALYZE")
        yield database


def key(number: int) -> dict[str, Any]:
    return {
        "id": f"key-{number}", "name": f"k{number}", "namespaces": [f"team{number % 50}"], "scopes": ["read"],
        "secret_sha256": hashlib.sha256(str(number).encode()).hexdigest(), "prefix": "sk", "created_at": now(),
    }  # fmt: skip


def plans(database: Database, asks: Asks) -> list[str]:
    """The plans of all statements of a transaction, which is taken back."""
    seen: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith(("SELECT", "DELETE", "UPDATE")):
            seen.append((statement, parameters))

    connection = database.engine.connect().execution_options(soup_mode="write")
    with connection, connection.begin() as everything:
        event.listen(database.engine, "before_cursor_execute", note)
        try:
            asks(Catalogue(connection))
        finally:
            event.remove(database.engine, "before_cursor_execute", note)
        how = "EXPLAIN QUERY PLAN " if database.engine.dialect.name == "sqlite" else "EXPLAIN "
        found = [
            "\n".join(str(row[-1]) for row in connection.exec_driver_sql(how + statement, parameters))
            for statement, parameters in seen
        ]
        everything.rollback()
    return found


def name(**fields: Any) -> NameRef:
    return NameRef(namespace="team7", name="a1007", **fields)


@pytest.mark.parametrize(
    ("asks", "index"),
    [
        (lambda c: c.adapters.resolve(None, name()), OWN),
        (lambda c: c.adapters.resolve(("team7",), name(version=1)), OWN),
        (lambda c: c.adapters.resolve(None, name(alias="prod")), OWN),
        (lambda c: c.adapters.resolve(None, DigestRef(digest=sha256_digest(b"team7/a1007"))), "ix_adapters_digest"),
        (lambda c: c.keys.page(lambda _: True, limit=10, cursor=None), "ix_keys_created_at"),
        (lambda c: c.keys.page(lambda of: of == ("team7",), limit=10, cursor=None), "ix_keys_created_at"),
    ],
    ids=["name", "version", "alias", "digest", "keys", "keys of a namespace"],
)  # fmt: skip
def test_rows_are_found_by_an_index_and_read_in_its_order(full: Database, asks: Asks, index: str) -> None:
    found = plans(full, asks)
    assert found
    assert any(one in found[0] for one in index.split("|")), found
    for plan in found:
        assert "Seq Scan" not in plan, plan
        assert "SCAN" not in plan.replace("SCAN keys USING INDEX", "").replace("Index Scan", ""), plan


def test_pages_of_keys_are_read_from_the_cursor_on(full: Database) -> None:
    with full.read() as catalogue:
        page = catalogue.keys.page(lambda _: True, limit=1_000, cursor=None)
        cursor = page.next_cursor
    last = plans(full, lambda catalogue: catalogue.keys.page(lambda _: True, limit=10, cursor=cursor))
    assert len(page.rows) == 1_000
    assert any("ix_keys_created_at" in plan and ("(created_at" in plan or "Index Cond" in plan) for plan in last), last
