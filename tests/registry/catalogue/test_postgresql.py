"""Behaviour of PostgreSQL alone: turns across processes, writers that freeze, connections that break, messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from psycopg.pq import TransactionStatus
from sqlalchemy import make_url, text
from sqlalchemy.exc import IntegrityError

from registry.catalogue import Database, postgresql
from registry.errors import Busy, InvalidParameter, Unavailable
from tests.postgres import Postgres
from tests.registry.catalogue_rows import add, add_to, new_adapter


@pytest.fixture
def database(postgres_url: str) -> Iterator[Database]:
    database = Database(postgres_url)
    yield database
    database.close()


def test_reads_and_writes_have_the_isolation_they_need_whatever_the_default_is(
    postgres: Postgres, database: Database
) -> None:
    name = database.engine.url.database
    postgres.sql(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    postgres.sql(f"ALTER DATABASE {name} SET default_transaction_deferrable = on")
    for _ in range(2):  # the second time on the same connection
        for open_, isolation, read_only in (
            (database.read, "repeatable read", "on"),
            (database.write, "read committed", "off"),
        ):
            with open_() as catalogue:
                connection = catalogue.adapters._connection
                assert connection.execute(text("SHOW transaction_isolation")).scalar_one() == isolation
                assert connection.execute(text("SHOW transaction_read_only")).scalar_one() == read_only


def test_a_glance_begins_no_transaction(database: Database) -> None:
    for _ in range(2):
        for open_, status in (
            (database.read_autocommit, TransactionStatus.IDLE),
            (database.read, TransactionStatus.INTRANS),  # on the same connection, which is told anew
        ):
            with open_() as catalogue:
                assert catalogue.keys.by_secret("0" * 64) is None
                driver: Any = catalogue.keys._connection.connection.driver_connection
                assert driver.info.transaction_status == status


def test_a_writer_that_freezes_loses_its_turn(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine sleeps in mid-transaction: the others wait for a while, not for ever; nothing of it is stored."""
    monkeypatch.setattr(postgresql, "IDLE_SECONDS", 0.1)
    frozen, second = Database(postgres_url), Database(postgres_url)
    with pytest.raises(Unavailable, match="does not answer"), frozen.write() as catalogue:
        add(catalogue, "acme/frozen")
        with second.write() as theirs:
            add(theirs, "acme/other")
        add(catalogue, "acme/again")
    with frozen.read() as catalogue:
        assert [row.name for row in catalogue.adapters.list(None, limit=9).rows] == ["other"]
    for database in (frozen, second):
        database.close()


def test_two_schemas_of_one_database_do_not_wait_for_each_other(postgres: Postgres, postgres_url: str) -> None:
    database = Database(postgres_url)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA other")
    elsewhere = Database(f"{postgres_url}&options=-csearch_path%3Dother", busy_seconds=0.01)
    with database.write(), elsewhere.write():
        pass
    for opened in (database, elsewhere):
        opened.close()


def test_every_connection_was_cut_while_nobody_looked(postgres: Postgres, database: Database) -> None:
    with database.read(), database.read():
        pass
    name = database.engine.url.database
    postgres.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    add_to(database)
    with database.read() as catalogue:
        assert len(catalogue.adapters.list(None, limit=9).rows) == 1


def test_cut_in_the_middle_is_unavailable_and_stores_nothing(postgres: Postgres, database: Database) -> None:
    for open_ in (database.read, database.write):
        with pytest.raises(Unavailable, match="does not answer") as caught, open_() as catalogue:
            pid = catalogue.adapters._connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            postgres.sql(f"SELECT pg_terminate_backend({pid})")
            catalogue.adapters.list(None, limit=9)
        assert "\n" not in caught.value.message


def test_a_standby_takes_no_writes(postgres: Postgres, database: Database) -> None:
    postgres.sql(f"ALTER DATABASE {database.engine.url.database} SET default_transaction_read_only = on")
    with pytest.raises(Unavailable, match="no writes"), database.write() as catalogue:
        add(catalogue)
    with database.read() as catalogue:
        assert catalogue.adapters.list(None, limit=9).rows == ()


def test_too_many_connections_is_unavailable(postgres: Postgres, postgres_url: str) -> None:
    postgres.sql(f"ALTER DATABASE {make_url(postgres_url).database} WITH CONNECTION LIMIT 0")
    postgres.sql(
        "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'plain') THEN "
        "CREATE ROLE plain LOGIN; END IF; END $$"
    )
    database = Database(postgres_url.replace("postgres:@", "plain:@"))
    with pytest.raises(Unavailable, match="does not answer"), database.read():
        pass
    database.close()


def test_a_statement_that_is_cancelled_may_be_tried_again(database: Database) -> None:
    with pytest.raises(Busy, match="try again") as caught, database.read() as catalogue:
        catalogue.adapters._connection.exec_driver_sql("SET LOCAL statement_timeout = 1; SELECT pg_sleep(30)")
    assert caught.value.retry_after >= 1


@pytest.mark.parametrize("subject", ["a\x00b", "x" * 301])
def test_what_no_column_takes_is_the_callers_fault(database: Database, subject: str) -> None:
    with pytest.raises(InvalidParameter, match="too long"), database.write() as catalogue:
        catalogue.audit.record("a", subject, key_id=None, request_id=None, detail={})


def test_our_own_mistakes_are_not_told_as_anything_else(database: Database) -> None:
    with pytest.raises(IntegrityError) as caught, database.write() as catalogue:
        catalogue.adapters.add(new_adapter("acme/blobless", description="secret words"))
    assert "secret words" not in str(caught.value), "errors are logged, what people sent is not"


@pytest.mark.parametrize(
    "url", ["mysql://soup@db/soup", "postgres://soup@db/soup", "soup", "", "postgresql://a:b@c@d/e"]
)
def test_what_is_no_url_of_ours_is_one_sentence(url: str) -> None:
    with pytest.raises(InvalidParameter, match="SOUP_DATABASE_URL must be"):
        Database(url)
