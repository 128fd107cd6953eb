"""Transactions: what a write does, what a read cannot do, and what is said when the database is busy."""

from __future__ import annotations

import resource
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError, StatementError

from registry.catalogue import Database
from registry.catalogue.tables import EPOCH, Microseconds
from registry.errors import Busy, Internal, InvalidParameter, Unavailable
from tests.registry.catalogue_rows import add, add_to


def count(database: Database) -> int:
    with database.read() as catalogue:
        return len(catalogue.adapters.list(None, limit=1000).rows)


def enqueue_much(database: Database) -> None:
    with database.write() as catalogue:
        for number in range(40):
            catalogue.jobs.enqueue("embed", {"text": "x" * 10**5}, namespace="acme", created_by=str(number))


# --- transactions ---------------------------------------------------------------------------------


def test_a_write_is_there_when_it_ends(database):
    with database.write() as catalogue:
        row = add(catalogue)
        assert count(database) == 0, "nobody else sees it before"
        assert [listed.ref for listed in catalogue.adapters.list(None, limit=9).rows] == [row.ref]
    with database.read() as catalogue:
        assert catalogue.adapters.get(row.id) == row


def test_an_error_undoes_all_of_it(database):
    with pytest.raises(ZeroDivisionError), database.write() as catalogue:
        add(catalogue)
        catalogue.jobs.enqueue("embed", {}, namespace="acme", created_by="k")
        raise ZeroDivisionError
    with database.read() as catalogue:
        assert catalogue.adapters.list(None, limit=9).rows == catalogue.jobs.list(None, limit=9).rows == ()


def test_a_read_cannot_write(database):
    with pytest.raises(DBAPIError, match=r"read-?only"), database.read() as catalogue:
        add(catalogue)
    add_to(database)  # on the same connection
    assert count(database) == 1


def test_a_glance_finds_what_is_stored_and_cannot_write(database):
    row = add_to(database)
    for _ in range(2):  # the second time on the same connection
        with database.read_autocommit() as catalogue:
            assert catalogue.adapters.get_or_none(row.id) == row
    with (
        pytest.raises((DBAPIError, Internal), match=r"read-?only|may write"),
        database.read_autocommit() as catalogue,
    ):
        catalogue.aliases.put("acme", "law", "prod", 1)
    with database.write() as catalogue:  # on the same connection
        assert catalogue.aliases.list("acme", "law") == []
        catalogue.aliases.put("acme", "law", "prod", 1)


def test_a_read_sees_one_state(database):
    with database.read() as catalogue:
        assert catalogue.adapters.list(None, limit=9).rows == ()
        with database.write() as writer:
            add(writer)
        assert catalogue.adapters.list(None, limit=9).rows == ()
    assert count(database) == 1


def test_a_write_inside_a_write_is_our_fault_and_not_a_deadlock(database):
    with database.write() as catalogue:
        with pytest.raises(Internal, match="inside another"), database.write():
            pass
        add(catalogue)
    assert count(database) == 1


def test_many_transactions_use_no_more_connections_than_there_are(databases, tmp_path):
    with databases.new(tmp_path, pool_size=1, busy_seconds=0.01) as database:
        for _ in range(20):
            add_to(database)
            with pytest.raises(ZeroDivisionError), database.read():
                raise ZeroDivisionError
            with pytest.raises(ZeroDivisionError), database.write():
                raise ZeroDivisionError
        assert count(database) == 20


# --- busy -----------------------------------------------------------------------------------------


def test_another_process_that_writes(databases, tmp_path):
    with databases.url(tmp_path) as url:
        database, writer = Database(url, busy_seconds=0.01), Database(url)
        with writer.write():
            with pytest.raises(Busy, match="try again") as busy, database.write():
                pass
            assert busy.value.retry_after >= 1
            assert count(database) == 0, "readers are not kept waiting"
        add_to(database)
        writer.close()
        database.close()


def test_another_thread_that_writes(databases, tmp_path):
    with databases.new(tmp_path, busy_seconds=0.01) as database, ThreadPoolExecutor(1) as pool:

        def write() -> None:
            with database.write():
                pass

        with database.write(), pytest.raises(Busy):
            pool.submit(write).result()
        pool.submit(write).result()  # the turn was given back


def test_no_connection_left(databases, tmp_path):
    with databases.new(tmp_path, pool_size=2, busy_seconds=0.01) as database:
        with database.read(), database.read(), pytest.raises(Busy, match="connection"), database.read():
            pass
        assert count(database) == 0


def test_a_file_that_cannot_be_opened_is_not_busy(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'no' / 'folder'}", busy_seconds=0.01)
    with pytest.raises(Exception, match="unable to open") as raised, database.write():
        pass
    assert not isinstance(raised.value, Busy)


def test_whoever_starts_on_a_broken_file_hears_of_the_file(sqlite, tmp_path):
    (tmp_path / "soup.db").write_bytes(b"this is no database, and long enough to be sure of it")
    refusal = pytest.raises(Unavailable, match=r"soup\.db cannot be used \(.*\): check SOUP_DATA .* put back a copy")
    with refusal, sqlite.translate_startup_errors(), sqlite.engine.connect():
        pass


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pragma", "value"), [("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1), ("busy_timeout", 30000)]
)
def test_every_connection_is_durable_and_checked(sqlite, pragma, value):
    with sqlite.read(), sqlite.read(), sqlite.engine.connect() as third:
        assert third.exec_driver_sql(f"PRAGMA {pragma}").scalar() == value


def test_a_full_disk_is_unavailable_and_leaves_nothing(sqlite):
    with sqlite.engine.connect() as connection:  # the one that is used below, since nobody else has one
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(Unavailable, match="disk of the database is full"):
        enqueue_much(sqlite)
    with sqlite.read() as catalogue:
        assert catalogue.jobs.list(None, limit=1).rows == ()


def test_a_disk_that_fails_is_unavailable_and_leaves_nothing(sqlite, tmp_path):
    """A file system lets files grow no further: SQLite hears of an input/output error."""
    most = max(path.stat().st_size for path in tmp_path.iterdir()) + 4096
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(Unavailable, match=r"cannot be used \(disk I/O error\): look at its disk"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
        try:
            enqueue_much(sqlite)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with sqlite.write() as catalogue:
        assert catalogue.jobs.list(None, limit=1).rows == ()
        add(catalogue)
    assert count(sqlite) == 1


def test_a_damaged_file_is_unavailable_and_says_what_to_do(sqlite, tmp_path):
    sqlite.close()
    (tmp_path / "soup.db").write_bytes(b"no database at all" * 999)
    with pytest.raises(Unavailable, match=r"is damaged \(file is not a database\).*soup restore"), sqlite.read():
        pass


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite+pysqlite://"])
def test_a_database_in_memory_is_refused(url):
    with pytest.raises(InvalidParameter, match="must be a file"):
        Database(url)


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_json_is_refused_when_written(database, value):
    with pytest.raises((StatementError, ValueError), match="not JSON compliant"), database.write() as catalogue:
        catalogue.audit.record("a", "b", key_id=None, request_id=None, detail={"x": value})


@given(moment=st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(3000, 1, 1)), hours=st.integers(-12, 12))
def test_times_come_back_to_the_microsecond_in_utc(moment, hours):
    kind = Microseconds()
    aware = moment.replace(tzinfo=timezone(timedelta(hours=hours)))
    stored = kind.process_bind_param(aware, None)
    back = kind.process_result_value(stored, None)
    assert back == aware
    assert back.tzinfo is UTC
    assert stored == (aware - EPOCH) // timedelta(microseconds=1)


def test_naive_times_are_refused():
    with pytest.raises(ValueError, match="time zone"):
        Microseconds().process_bind_param(datetime(2026, 1, 1), None)
    assert Microseconds().process_bind_param(None, None) is None
    assert Microseconds().process_result_value(None, None) is None


# --- a file that goes away ------------------------------------------------------------------------


# Of SQLite, which would write on into a file that has no name any more.


@pytest.fixture
def opened(sqlite, tmp_path):
    add_to(sqlite)
    return sqlite, tmp_path / "soup.db"


@pytest.mark.parametrize("replaced", [True, False])
def test_a_write_is_not_acknowledged(opened, replaced):
    database, file = opened
    with pytest.raises(Unavailable, match=r"soup.db was removed or replaced"), database.write() as catalogue:
        add(catalogue, "acme/lost")
        file.rename(file.with_name("elsewhere.db"))
        if replaced:
            file.write_bytes(file.with_name("elsewhere.db").read_bytes())
    with pytest.raises(Unavailable, match="put the file back"):
        count(database)
    assert file.exists() is replaced


def test_it_works_on_when_it_is_back(opened):
    database, file = opened
    file.rename(file.with_name("elsewhere.db"))
    with pytest.raises(Unavailable):
        count(database)
    file.with_name("elsewhere.db").rename(file)
    assert count(database) == 1


def test_what_was_closed_may_be_replaced(opened):
    database, file = opened
    database.close()
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data)
    assert count(database) == 1
