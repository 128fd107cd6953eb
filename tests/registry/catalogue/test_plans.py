"""Statements over tables that grow with a company, as the database plans them: each by an index that suits it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, insert

from registry.catalogue import Catalogue, Database
from registry.catalogue.adapters import columns_of
from registry.catalogue.repository import now
from registry.catalogue.tables import adapter_tags, adapters, aliases, audit, job_askers, jobs, keys, usage
from registry.catalogue.words import adapter_words, indexed
from registry.names import DigestRef, NameRef, sha256_digest
from tests.registry.catalogue_rows import add_to, new_adapter

ROWS, KEYS = 1_500, 3_000
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)
SOON = BEGIN + timedelta(days=2)
OWN = "pk_|uq_|ix_|sqlite_autoindex_"
"""Any index; SQLite names those of keys and constraints itself."""
UNSETTLED = "SELECT relname FROM pg_class WHERE relname LIKE 'adapter%%' AND relkind = 'r' AND relallvisible < relpages"
"""Tables of which a plan's cost still depends on when it is made."""
FILLER = " ".join(f"filler{n}" for n in range(60))
Asks = Callable[[Catalogue], object]


def rare(number: int, tag: str = "x") -> tuple[str, ...]:
    """The tag for one in forty."""
    return (tag,) if number % 40 == 0 else ()


@pytest.fixture(scope="module")
def full(databases, tmp_path_factory) -> Iterator[Database]:
    """A database in which it pays to use an index."""
    with databases.new(tmp_path_factory.mktemp("plans")) as database:
        blob = add_to(database, "acme/first").weights_blob
        new_rows = [
            new_adapter(
                f"team{n % 150}/a{n}",
                domain=f"d{n % 100}",
                weights_blob=blob,
                tags=("common", *rare(n, "rare")),
                kind="soup" if rare(n) else "adapter",
                base_model="big" if rare(n) else "tiny",
                owner="few" if rare(n) else None,
                description=f"word{n} common {FILLER}",
            )
            for n in range(ROWS)
        ]
        with database.engine.begin() as connection:
            rows = [
                {**columns_of(new), "version": 1, "method": "lora" if rare(n) else "bottleneck"}
                for n, new in enumerate(new_rows)
            ]
            connection.execute(insert(adapters), rows)
            ids = dict(connection.execute(adapters.select().with_only_columns(adapters.c.name, adapters.c.id)).all())
            connection.execute(
                insert(adapter_words), [{"adapter_id": ids[n.name], "words": indexed(n)} for n in new_rows]
            )
            tags = [{"adapter_id": ids[new.name], "tag": tag} for new in new_rows for tag in new.card.tags]
            connection.execute(insert(adapter_tags), tags)
            named = [{"namespace": new.namespace, "name": new.name, "alias": "prod", "version": 1} for new in new_rows]
            connection.execute(insert(aliases), [{**alias, "revision": 1} for alias in named])
            connection.execute(insert(keys), list(map(key, range(KEYS))))
            connection.execute(insert(jobs), list(map(job, range(ROWS))))
            connection.execute(
                insert(job_askers), [{"job": f"job-{n}", "key_id": "key-2", "asked_at": BEGIN} for n in range(ROWS)]
            )
            connection.execute(insert(audit), list(map(entry, range(ROWS))))
            connection.execute(insert(usage), list(map(used, range(ROWS))))
        if databases.kind == "postgresql":  # which does so by itself; SQLite is never asked to
            with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                # Rows count as visible to all, on which costs depend, once their commits are on the disk: VACUUM's too.
                for statement in ("SET synchronous_commit = on", "CHECKPOINT", "VACUUM ANALYZE"):
                    connection.exec_driver_sql(statement)
                assert connection.exec_driver_sql(UNSETTLED).all() == []
        yield database


def key(number: int) -> dict[str, Any]:
    return {
        "id": f"key-{number}",
        "name": f"k{number}",
        "namespaces": [f"team{number % 50}"],
        "scopes": ["read"],
        "secret_sha256": hashlib.sha256(str(number).encode()).hexdigest(),
        "prefix": "sk",
        "created_at": now(),
    }


def job(number: int) -> dict[str, Any]:
    at = BEGIN + timedelta(hours=number)
    return {
        "id": f"job-{number}",
        "kind": "embed",
        "state": "succeeded",
        "namespace": "acme",
        "created_by": "key-1",
        "arguments": {},
        "progress": {},
        "attempts": 1,
        "run_after": at,
        "created_at": at,
        "updated_at": at,
        "finished_at": at,
    }


def entry(number: int) -> dict[str, Any]:
    at = BEGIN + timedelta(hours=number)
    return {"at": at, "action": f"push{number}", "subject": f"acme/a{number}", "namespace": "acme", "detail": {}}


def used(number: int) -> dict[str, Any]:
    day = (BEGIN + timedelta(days=number)).date().isoformat()
    sums = {"requests": 1, "tokens_in": 1, "tokens_out": 1}
    return {"day": day, "key_id": "key-1", "namespace": "acme", "model": "acme/law@1", **sums}


def plans(database: Database, asks: Asks) -> list[tuple[str, str]]:
    """All statements of a transaction, which is taken back, each with its plan."""
    statements: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith(("SELECT", "DELETE", "UPDATE")):
            statements.append((statement, parameters))

    connection = database.engine.connect().execution_options(soup_mode="write")
    with connection, connection.begin() as everything:
        event.listen(database.engine, "before_cursor_execute", note)
        try:
            asks(Catalogue(connection))
        finally:
            event.remove(database.engine, "before_cursor_execute", note)
        explain = "EXPLAIN QUERY PLAN " if database.engine.dialect.name == "sqlite" else "EXPLAIN "
        explained = [
            (statement, "\n".join(str(row[-1]) for row in connection.exec_driver_sql(explain + statement, parameters)))
            for statement, parameters in statements
        ]
        everything.rollback()
    return explained


def name(**fields: Any) -> NameRef:
    return NameRef(namespace="team107", name="a1007", **fields)


@pytest.mark.parametrize(
    ("asks", "index"),
    [
        (lambda c: c.adapters.resolve(None, name()), OWN),
        (lambda c: c.adapters.resolve(("team107",), name(version=1)), OWN),
        (lambda c: c.adapters.resolve(None, name(alias="prod")), OWN),
        (lambda c: c.adapters.resolve(None, DigestRef(digest=sha256_digest(b"team107/a1007"))), "ix_adapters_digest"),
        (lambda c: c.keys.page(lambda _: True, limit=10, cursor=None), "ix_keys_created_at"),
        (lambda c: c.keys.page(lambda of: of == ("team7",), limit=10, cursor=None), "ix_keys_created_at"),
        (lambda c: c.pruning.jobs(SOON, 10), "ix_jobs_finished_at"),
        (lambda c: c.pruning.usage(SOON, 10), OWN),
        (lambda c: c.pruning.audit(SOON, 10), "ix_audit_at"),
    ],
    ids=["name", "version", "alias", "digest", "keys", "keys of a namespace", "old jobs", "old usage", "old audit"],
)
def test_rows_are_found_by_an_index_and_read_in_its_order(full: Database, asks: Asks, index: str) -> None:
    plan_texts = [plan for _, plan in plans(full, asks)]
    assert plan_texts
    assert any(index_name in plan_texts[0] for index_name in index.split("|")), plan_texts
    for plan in plan_texts:
        assert "Seq Scan" not in plan, plan
        assert "SCAN" not in plan.replace("SCAN keys USING INDEX", "").replace("Index Scan", ""), plan


@pytest.mark.parametrize(
    ("asks", "table"),
    [
        (lambda c: c.removals.unused_soups("acme", SOON, limit=10), "usage"),
        (lambda c: c.removals.drop_selectors(SOON), "evidence"),
    ],
)
def test_rows_that_a_collection_looks_for_are_read_once(full: Database, asks: Asks, table: str) -> None:
    _, plan = plans(full, asks)[0]
    assert re.search(rf"LIST SUBQUERY \d+\n(SEARCH|SCAN) {table}|hashed SubPlan", plan), plan


def test_pages_of_keys_are_read_from_the_cursor_on(full: Database) -> None:
    with full.read() as catalogue:
        page = catalogue.keys.page(lambda _: True, limit=1_000, cursor=None)
        cursor = page.next_cursor
    last = plans(full, lambda catalogue: catalogue.keys.page(lambda _: True, limit=10, cursor=cursor))
    assert len(page.rows) == 1_000
    assert any("ix_keys_created_at" in plan and ("(created_at" in plan or "Index Cond" in plan) for _, plan in last), (
        last
    )


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
)
def test_lists_use_their_index_and_read_no_provenance(full: Database, visible: Any, filters: Any, index: str) -> None:
    statement, plan = plans(full, lambda catalogue: catalogue.adapters.list(visible, limit=2, **filters))[-1]
    assert any(name in plan for name in index.split("|")), plan
    assert "provenance" not in statement
    assert "Seq Scan" not in plan
    if full.engine.dialect.name == "postgresql" and "q" not in filters:
        assert plan.replace("Index Scan using pk_adapters", "", 1).count("Index Scan") == 0, (
            "only a page's rows are read"
        )
    assert "TEMP B-TREE" not in plan, "SQLite sorts what it could read in order"
    assert "SCAN adapters" not in plan.replace("SCAN adapters USING INDEX", "")
