"""Statements over tables that grow with a company, as the database plans them: each by an index that suits it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, insert

from registry.catalogue import Catalogue, Database
from registry.catalogue.adapters import columns_of
from registry.catalogue.repository import now
from registry.catalogue.tables import adapters, aliases, audit, job_askers, jobs, keys, usage
from registry.names import DigestRef, NameRef, sha256_digest
from tests.registry.catalogue_rows import add, new_adapter

ROWS = 3_000
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
SOON = BEGIN + timedelta(days=2)
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
            connection.execute(insert(jobs), list(map(job, range(ROWS))))
            connection.execute(
                insert(job_askers), [{"job": f"job-{n}", "key_id": "key-2", "asked_at": BEGIN} for n in range(ROWS)]
            )
            connection.execute(insert(audit), list(map(entry, range(ROWS))))
            connection.execute(insert(usage), list(map(used, range(ROWS))))
        if databases.kind == "postgresql":  # which does so by itself; SQLite is never asked to
            with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM ANALYZE")
        yield database


def key(number: int) -> dict[str, Any]:
    return {
        "id": f"key-{number}", "name": f"k{number}", "namespaces": [f"team{number % 50}"], "scopes": ["read"],
        "secret_sha256": hashlib.sha256(str(number).encode()).hexdigest(), "prefix": "sk", "created_at": now(),
    }  # fmt: skip


def job(number: int) -> dict[str, Any]:
    at = BEGIN + timedelta(hours=number)
    return {
        "id": f"job-{number}", "kind": "embed", "state": "succeeded", "namespace": "acme", "created_by": "key-1",
        "arguments": {}, "progress": {}, "attempts": 1, "run_after": at, "created_at": at, "updated_at": at,
        "finished_at": at,
    }  # fmt: skip


def entry(number: int) -> dict[str, Any]:
    at = BEGIN + timedelta(hours=number)
    return {"at": at, "action": f"push{number}", "subject": f"acme/a{number}", "namespace": "acme", "detail": {}}


def used(number: int) -> dict[str, Any]:
    day = (BEGIN + timedelta(days=number)).date().isoformat()
    sums = {"requests": 1, "tokens_in": 1, "tokens_out": 1}
    return {"day": day, "key_id": "key-1", "namespace": "acme", "model": "acme/law@1", **sums}


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
        (lambda c: c.pruning.jobs(SOON, 10), "ix_jobs_finished_at"),
        (lambda c: c.pruning.usage(SOON, 10), OWN),
        (lambda c: c.pruning.audit(SOON, 10), "ix_audit_at"),
    ],
    ids=["name", "version", "alias", "digest", "keys", "keys of a namespace", "old jobs", "old usage", "old audit"],
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
