"""Transactions: what a write does, what a read cannot do, and what is said when the database is busy."""

from __future__ import annotations

import json
import resource
import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError, StatementError

import migrations
from registry.catalogue import Database
from registry.catalogue.tables import EPOCH, Microseconds
from registry.errors import Busy, Internal, InvalidParameter, Unavailable
from registry.spec import Card
from tests.registry.catalogue_rows import add, new_adapter, new_database, undone


def count(database: Database) -> int:
    with database.read() as catalogue:
        return len(catalogue.adapters.list(None, limit=1000).rows)


class TestTransactions:
    def test_a_write_is_there_when_it_ends(self, database):
        with database.write() as catalogue:
            row = add(catalogue)
            assert count(database) == 0, "nobody else sees it before"
            assert [one.ref for one in catalogue.adapters.list(None, limit=9).rows] == [row.ref]
        with database.read() as catalogue:
            assert catalogue.adapters.get(row.id) == row

    def test_an_error_undoes_all_of_it(self, database):
        with pytest.raises(ZeroDivisionError), database.write() as catalogue:
            add(catalogue)
            catalogue.jobs.enqueue("embed", {}, namespace="acme", created_by="k")
            raise ZeroDivisionError
        with database.read() as catalogue:
            assert catalogue.adapters.list(None, limit=9).rows == catalogue.jobs.list(None, limit=9).rows == ()

    def test_a_refused_statement_undoes_all_of_it(self, database):
        with pytest.raises(IntegrityError), database.write() as catalogue:
            add(catalogue)
            catalogue.adapters.add(new_adapter("acme/blobless"))
        assert count(database) == 0

    def test_a_read_cannot_write(self, database):
        with pytest.raises(DBAPIError, match=r"read-?only"), database.read() as catalogue:
            add(catalogue)
        with database.write() as catalogue:  # on the same connection
            add(catalogue)
        assert count(database) == 1

    def test_a_glance_finds_what_is_stored_and_cannot_write(self, database):
        with database.write() as catalogue:
            row = add(catalogue)
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

    def test_a_read_sees_one_state(self, database):
        with database.read() as catalogue:
            assert catalogue.adapters.list(None, limit=9).rows == ()
            with database.write() as other:
                add(other)
            assert catalogue.adapters.list(None, limit=9).rows == ()
        assert count(database) == 1

    def test_a_write_inside_a_write_is_our_fault_and_not_a_deadlock(self, database):
        with database.write() as catalogue:
            with pytest.raises(Internal, match="inside another"), database.write():
                pass
            add(catalogue)
        assert count(database) == 1

    def test_many_transactions_use_no_more_connections_than_there_are(self, databases, tmp_path):
        with databases.new(tmp_path, pool_size=1, busy_seconds=0.01) as database:
            for _ in range(20):
                with database.write() as catalogue:
                    add(catalogue)
                with pytest.raises(ZeroDivisionError), database.read():
                    raise ZeroDivisionError
                with pytest.raises(ZeroDivisionError), database.write():
                    raise ZeroDivisionError
            assert count(database) == 20


class TestBusy:
    def test_another_process_that_writes(self, databases, tmp_path):
        with databases.url(tmp_path) as url:
            database, other = Database(url, busy_seconds=0.01), Database(url)
            with other.write():
                with pytest.raises(Busy, match="try again") as busy, database.write():
                    pass
                assert busy.value.retry_after >= 1
                assert count(database) == 0, "readers are not kept waiting"
            with database.write() as catalogue:
                add(catalogue)
            other.close()
            database.close()

    def test_another_thread_that_writes(self, databases, tmp_path):
        with databases.new(tmp_path, busy_seconds=0.01) as database:
            self.check_another_thread(database)

    def check_another_thread(self, database):
        errors: list[BaseException] = []

        def second() -> None:
            try:
                with database.write():
                    pass
            except Busy as error:
                errors.append(error)

        with database.write():
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()
        assert len(errors) == 1
        second()
        assert len(errors) == 1, "the turn was given back"

    def test_no_connection_left(self, databases, tmp_path):
        with databases.new(tmp_path, pool_size=2, busy_seconds=0.01) as database:
            with database.read(), database.read(), pytest.raises(Busy, match="connection"), database.read():
                pass
            assert count(database) == 0

    def test_other_errors_are_not_busy(self, tmp_path):
        (tmp_path / "file").write_bytes(b"this is no database, and long enough to be sure of it")
        for path in (tmp_path / "file", tmp_path / "no" / "folder"):
            database = Database(f"sqlite:///{path}", busy_seconds=0.01)
            with pytest.raises(Exception, match=r"not a database|unable to open") as raised, database.write():
                pass
            assert not isinstance(raised.value, Busy)
            database.close()

    def test_whoever_starts_on_a_broken_file_hears_of_the_file(self, tmp_path):
        (tmp_path / "soup.db").write_bytes(b"this is no database, and long enough to be sure of it")
        database = Database(f"sqlite:///{tmp_path / 'soup.db'}", busy_seconds=0.01)
        told = pytest.raises(Unavailable, match=r"soup\.db cannot be used \(.*\): check SOUP_DATA .* put back a copy")
        with told, database.translate_startup_errors(), database.engine.connect():
            pass
        database.close()


class TestSettings:
    @pytest.mark.parametrize(
        ("pragma", "value"), [("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1), ("busy_timeout", 30000)]
    )
    def test_every_connection_is_durable_and_checked(self, tmp_path, pragma, value):
        database = new_database(tmp_path)
        with database.read(), database.read(), database.engine.connect() as third:
            assert third.exec_driver_sql(f"PRAGMA {pragma}").scalar() == value
        database.close()

    def test_a_migration_leaves_the_connections_checked(self, tmp_path):
        database = new_database(tmp_path)
        migrations.downgrade(database.engine, "base")
        migrations.upgrade(database.engine)
        for _ in range(2):
            with database.engine.connect() as connection:
                assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
        database.close()

    def test_a_full_disk_is_unavailable_and_leaves_nothing(self, tmp_path):
        database = Database(f"sqlite:///{tmp_path / 'soup.db'}", pool_size=1)
        migrations.upgrade(database.engine)
        with database.engine.connect() as connection:
            connection.exec_driver_sql(
                f"PRAGMA max_page_count={connection.exec_driver_sql('PRAGMA page_count').scalar()}"
            )
        with pytest.raises(Unavailable, match="disk of the database is full"), database.write() as catalogue:
            for number in range(1000):
                catalogue.jobs.enqueue("embed", {"text": "x" * 1000}, namespace="acme", created_by=str(number))
        with database.read() as catalogue:
            assert catalogue.jobs.list(None, limit=1).rows == ()
        database.close()

    def test_a_disk_that_fails_is_unavailable_and_leaves_nothing(self, tmp_path):
        """As by a file system that lets files grow no further: SQLite hears of an input/output error."""
        database = new_database(tmp_path)
        most = max(path.stat().st_size for path in tmp_path.iterdir()) + 4096
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        with pytest.raises(Unavailable, match=r"cannot be used \(disk I/O error\): look at its disk"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
            try:
                with database.write() as catalogue:
                    for number in range(1000):
                        catalogue.jobs.enqueue("embed", {"text": "x" * 1000}, namespace="a", created_by=str(number))
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        with database.write() as catalogue:
            assert catalogue.jobs.list(None, limit=1).rows == ()
            add(catalogue)
        assert count(database) == 1
        database.close()

    def test_a_damaged_file_is_unavailable_and_says_what_to_do(self, tmp_path):
        database = new_database(tmp_path)
        database.close()
        (tmp_path / "soup.db").write_bytes(b"no database at all" * 999)
        with pytest.raises(Unavailable, match=r"is damaged \(file is not a database\).*soup restore"), database.read():
            pass
        database.close()

    @pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite+pysqlite://"])
    def test_a_database_in_memory_is_refused(self, url):
        with pytest.raises(InvalidParameter, match="must be a file"):
            Database(url)

    def test_two_databases_in_one_process(self, databases, database, tmp_path):
        with databases.new(tmp_path / "2") as other:
            with database.write() as first, other.write() as second:
                add(first)
                add(second)
                add(second)
            assert (count(database), count(other)) == (1, 2)


@given(
    description=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=50),
    metadata=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=5),
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False),
        max_size=3,
    ),
)
def test_cards_come_back_to_the_bit(empty_database, description, metadata):
    card = Card(description=description, metadata=metadata)
    with undone(empty_database) as catalogue:
        row = add(catalogue, card=card)
    assert json.dumps(row.card.model_dump()) == json.dumps(card.model_dump())


class TestValues:
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_what_is_no_json_is_refused_when_written(self, database, value):
        with pytest.raises((StatementError, ValueError), match="not JSON compliant"), database.write() as catalogue:
            catalogue.audit.record("a", "b", key_id=None, request_id=None, detail={"x": value})

    @given(
        moment=st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(3000, 1, 1)), hours=st.integers(-12, 12)
    )
    def test_times_come_back_to_the_microsecond_in_utc(self, moment, hours):
        kind = Microseconds()
        aware = moment.replace(tzinfo=timezone(timedelta(hours=hours)))
        stored = kind.process_bind_param(aware, None)
        back = kind.process_result_value(stored, None)
        assert back == aware
        assert back.tzinfo is UTC
        assert stored == (aware - EPOCH) // timedelta(microseconds=1)

    def test_naive_times_are_refused(self):
        with pytest.raises(ValueError, match="time zone"):
            Microseconds().process_bind_param(datetime(2026, 1, 1), None)
        assert Microseconds().process_bind_param(None, None) is None
        assert Microseconds().process_result_value(None, None) is None

    def test_time_is_ordered_in_the_database(self, database):
        with database.write() as catalogue:
            rows = [add(catalogue) for _ in range(5)]
        with database.engine.connect() as connection:
            stored = connection.execute(text("SELECT id FROM adapters ORDER BY created_at, id")).scalars().all()
        assert stored == [row.id for row in rows]


class TestAFileThatGoesAway:
    """Of SQLite, which would write on into a file that has no name any more."""

    @pytest.fixture
    def opened(self, tmp_path):
        database = new_database(tmp_path)
        with database.write() as catalogue:
            add(catalogue)
        yield database, tmp_path / "soup.db"
        database.close()

    @pytest.mark.parametrize("replaced", [True, False])
    def test_a_write_is_not_acknowledged(self, opened, replaced):
        database, file = opened
        with pytest.raises(Unavailable, match=r"soup.db was removed or replaced"), database.write() as catalogue:
            add(catalogue, "acme/lost")
            file.rename(file.with_name("elsewhere.db"))
            if replaced:
                file.write_bytes(file.with_name("elsewhere.db").read_bytes())
        with pytest.raises(Unavailable, match="put the file back"):
            count(database)
        assert file.exists() is replaced

    def test_it_works_on_when_it_is_back(self, opened):
        database, file = opened
        file.rename(file.with_name("elsewhere.db"))
        with pytest.raises(Unavailable):
            count(database)
        file.with_name("elsewhere.db").rename(file)
        assert count(database) == 1

    def test_what_was_closed_may_be_replaced(self, opened):
        database, file = opened
        database.close()
        data = file.read_bytes()
        file.unlink()
        file.write_bytes(data)
        assert count(database) == 1
