"""Migrations: up, down and up again; they make exactly the tables; all of one or nothing; data survives them."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import inspect
from sqlalchemy.exc import IntegrityError

import migrations
from migrations import last_release
from registry.catalogue import AdapterRow, Catalogue, Database
from registry.catalogue.tables import metadata
from registry.errors import Unavailable
from registry.spec import Card
from service.operations.storage import Migrated, check_schema, check_serves, is_outgrown, migrate
from tests import last_release as history
from tests.adaptersoup.cli.test_cold_start import loaded
from tests.postgres import Databases
from tests.registry.catalogue.conftest import Later
from tests.registry.catalogue.neighbours import copy_rows, rows_of, schema_of, taken_away
from tests.registry.catalogue.test_soups import fitted
from tests.registry.catalogue_rows import add, add_ready, add_to, member_of, new_adapter, sample_of
from tests.registry.together import together

HEAD = migrations.head()
ADD_STARS = """with op.batch_alter_table("adapters", recreate=RECREATE) as table:
        table.add_column(sa.Column("stars", sa.Integer(), nullable=False, server_default="3"))"""
DROP_STARS = """with op.batch_alter_table("adapters") as table:
        table.drop_column("stars")"""


@pytest.fixture
def empty(databases, tmp_path):
    """A database without any table."""
    with databases.new(tmp_path, empty=True) as database:
        yield database


def schema(database: Database) -> dict[str, Any]:
    """Columns, keys, constraints and indexes of each table, without their order."""
    inspector, numbered_once = inspect(database.engine), numbered_once_by(database)
    return {
        table: {
            "columns": {
                (c["name"], str(c["type"]), c["nullable"], str(c["default"])) for c in inspector.get_columns(table)
            },
            "primary": inspector.get_pk_constraint(table),
            "foreign": sorted(map(str, inspector.get_foreign_keys(table))),
            "unique": sorted(map(str, inspector.get_unique_constraints(table))),
            "checks": sorted(map(str, inspector.get_check_constraints(table))),
            "indexes": sorted(map(index_text, inspector.get_indexes(table))),
            "gives each id once": table in numbered_once,
        }
        for table in inspector.get_table_names()
        if not table.endswith("_version")  # those are of the migrations, not of a revision
    }


def numbered_once_by(database: Database) -> set[str]:
    """The tables of a SQLite file that give no id twice, which inspection does not tell."""
    if database.engine.dialect.name != "sqlite":
        return set()
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%AUTOINCREMENT%'"
    with database.engine.connect() as connection:
        return set(connection.exec_driver_sql(query).scalars())


def index_text(index: Any) -> str:
    """An index with the words of its options, which are objects that print their address."""
    return str({**index, "dialect_options": {name: str(option) for name, option in index["dialect_options"].items()}})


def fill(database: Database) -> list[str]:
    with database.write() as catalogue:
        rows = [add_ready(catalogue, f"acme/{name}", card=Card(tags=("x", name))) for name in "abc"]
    return [row.ref for row in rows]


def refs(database: Database) -> list[str]:
    with database.read() as catalogue:
        return sorted(row.ref for row in catalogue.adapters.list(None, tags=["x"], limit=9).rows)


def test_up_down_and_up_again(empty):
    database = empty
    assert migrations.current(database.engine) is None
    first = None
    for is_last in (False, True):
        migrations.upgrade(database.engine)
        assert migrations.current(database.engine) == migrations.head()
        first = first or schema(database)
        assert schema(database) == first
        assert set(metadata.tables) < first.keys() | {"alembic_version"}
        fill(database)
        if not is_last:
            migrations.downgrade(database.engine, "base")
            assert inspect(database.engine).get_table_names() == ["alembic_version"]
            assert migrations.current(database.engine) is None


def test_the_migrations_make_exactly_the_tables(databases, database, tmp_path):
    """Autogenerate sees no difference, nor does reflection (autogenerate looks at no CHECK)."""
    with database.engine.connect() as connection:
        opts = {"compare_type": True, "compare_server_default": True, "include_name": migrations.is_compared}
        assert compare_metadata(MigrationContext.configure(connection, opts=opts), metadata) == []
        command.check(migrations._config(connection))
    with databases.new(tmp_path / "declared", empty=True) as declared:
        metadata.create_all(declared.engine)
        assert schema(database) == schema(declared)


def test_nothing_is_migrated_without_a_connection():
    with pytest.raises(RuntimeError, match="soup migrate"):
        command.upgrade(migrations._config(), "head")


def test_a_database_of_a_later_version_is_refused_and_left_alone(database):
    with database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    assert not migrations.knows("9999")
    assert migrations.knows(migrations.head())
    with pytest.raises(CommandError, match="9999"):
        migrations.upgrade(database.engine)
    assert migrations.current(database.engine) == "9999"


def test_a_table_that_others_refer_to_is_rebuilt_with_its_data(database, later):
    """SQLite alters by copying; with foreign keys on, dropping the old table would be refused or delete its tags."""
    original_refs = fill(database)
    later(ADD_STARS, DROP_STARS)
    migrations.upgrade(database.engine)
    assert migrations.current(database.engine) == "next0"
    assert refs(database) == original_refs
    with database.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT stars FROM adapters").scalars().all() == [3, 3, 3]
    with pytest.raises(IntegrityError), database.write() as catalogue:  # foreign keys are checked again
        catalogue.adapters.add(new_adapter("acme/blobless"))
    with database.write() as catalogue:  # what keeps the index of words is still there
        row = add_ready(catalogue, "acme/d", tags=("x",))
        assert [listed.ref for listed in catalogue.adapters.list(None, q="acme d", tags=["x"], limit=9).rows] == [
            row.ref
        ]
        catalogue.removals.purge(row)
    migrations.downgrade(database.engine, HEAD)
    assert refs(database) == original_refs
    assert add_to(database, "acme/a").version == 2


@pytest.mark.parametrize("remembered_by", ["nobody", "an embedding job", "a cook", "a selector"])
def test_after_an_upgrade_an_id_of_a_purged_adapter_is_not_given_again(empty, remembered_by):
    migrations.upgrade(empty.engine, "0024")
    with empty.write() as catalogue:
        rows = [add(catalogue, f"acme/{name}") for name in "abc"]
        if remembered_by != "nobody":  # a row that came from another database, whose ids have gaps
            rows.append(remember(catalogue, replace(rows[-1], id=40), remembered_by))
        for row in rows[1:3]:
            catalogue.removals.purge(row)
    migrations.upgrade(empty.engine)
    assert add_to(empty, "other/secret").id > rows[-1].id
    assert add_to(empty, "other/second").id > rows[-1].id + 1


def remember(catalogue: Catalogue, row: AdapterRow, by: str) -> AdapterRow:
    """The row, whose id a job or a selector has."""
    if by == "a selector":
        fitted(catalogue, "sel-1", members=(member_of(row),))
    elif by == "a cook":
        job = catalogue.jobs.enqueue("cook", {}, namespace="acme", created_by="key-1")
        catalogue.jobs.claim("worker", ["cook"], 60, job.run_after)
        assert catalogue.jobs.succeed(job.id, {"soup_id": row.id, "model": row.ref})
    else:
        catalogue.jobs.enqueue("embed", {"adapter_id": row.id}, namespace="acme", created_by="key-1")
    return row


@pytest.mark.parametrize(
    ("upgrade", "error"),
    [
        (ADD_STARS + '\n    op.drop_table("audit")\n    raise ZeroDivisionError', ZeroDivisionError),
        ('op.drop_table("audit")\n    op.execute("DELETE FROM adapters")', (RuntimeError, IntegrityError)),
    ],
    ids=["an error", "orphans"],
)
def test_a_migration_that_fails_leaves_everything_as_it_was(database, later, upgrade, error):
    refs_before, schema_before = fill(database), schema(database)
    later(upgrade)
    with pytest.raises(error):
        migrations.upgrade(database.engine)
    assert (refs(database), schema(database)) == (refs_before, schema_before)
    assert migrations.current(database.engine) == HEAD
    with pytest.raises(IntegrityError), database.write() as catalogue:  # foreign keys are checked again
        catalogue.adapters.add(new_adapter("acme/blobless"))


def test_what_reads_meanwhile_is_not_disturbed(sqlite, later):
    original_refs = fill(sqlite)
    later(ADD_STARS)
    with sqlite.read() as catalogue, ThreadPoolExecutor(1) as pool:
        first = len(catalogue.adapters.list(None, limit=9).rows)
        pool.submit(migrations.upgrade, sqlite.engine).result()
        assert len(catalogue.adapters.list(None, limit=9).rows) == first == len(original_refs)
    assert migrations.current(sqlite.engine) == "next0"


def test_on_postgresql_a_migration_waits_for_its_turn_and_finds_the_work_done(postgres):
    """`soup migrate` twice at once: the second waits, not for long, and has nothing to do."""
    url = postgres.url(empty=True)
    first, second = Database(url), Database(url, busy_seconds=0.01)
    with ThreadPoolExecutor(1) as pool:
        with first.engine.connect().execution_options(soup_mode="migrate") as connection, connection.begin():
            waiting = pool.submit(migrations.upgrade, second.engine)
            while not postgres.sql("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
                assert not waiting.done()
            assert migrations.current(first.engine) is None
            command.upgrade(migrations._config(connection), "head")
        assert waiting.result() == migrations.head()
    for database in (first, second):
        assert refs(database) == []
        database.close()
    postgres.drop(url)


def test_threads_that_migrate_databases_of_their_own_do_not_meet(databases, tmp_path):
    """Alembic's context is one for the process; two servers may start in one."""
    with ExitStack() as stack:
        several = [stack.enter_context(databases.new(tmp_path / str(n), empty=True)) for n in range(2)]
        assert together(2, lambda number: migrations.upgrade(several[number].engine)) == [None] * 2
        assert all(migrations.current(database.engine) == migrations.head() for database in several)


@pytest.mark.slow
def test_migrations_need_nothing_but_the_tables():
    """`soup migrate` must run where models cannot be loaded."""
    assert loaded("import migrations; migrations.head()", {"torch", "transformers", "sklearn"}) == set()


# --- beside the last release ----------------------------------------------------------------------


COLUMNS_FOR_ROUTERS = ("role", "url", "places", "bank_bytes", "requests", "adapters", "adapter_bytes", "started_at")
CONTRACTED = [("replicas", column) for column in COLUMNS_FOR_ROUTERS]
"""Tables and their columns that the last release has but neither reads nor writes, and that migrations since drop.
Emptied when the pin moves."""
ADD_COLUMN = """with op.batch_alter_table("adapters") as table:
        table.add_column(sa.Column("planted{}", sa.String(64)))"""


def test_they_take_nothing_away_that_the_last_release_uses(
    database: Database, databases: Databases, tmp_path: Path
) -> None:
    """Its schema and its rows, as it finds them on a database of this version.

    That was never at ours before: a migration back need not bring again what the one forth took.
    """
    fill(database)
    with database.write() as catalogue:
        catalogue.jobs.enqueue("fit", {}, namespace="acme", created_by="k", delay=0.0)
        catalogue.keys.add("lasts", "b" * 64, namespaces=None, scopes={"read"}, prefix="p")
    with databases.new(tmp_path / "released", empty=True) as released:
        migrations.upgrade(released.engine, last_release.REVISION)
        last_schema = schema_of(released.engine)
        for table, column in CONTRACTED:
            del last_schema[table]["columns"][column]
        copy_rows(database.engine, released.engine)
        rows = rows_of(released.engine, last_schema)
        migrations.upgrade(released.engine)
        schema = schema_of(released.engine)
        assert taken_away(last_schema, schema) == [], "two releases share a schema: take it away one release later"
        assert not [column for table, column in CONTRACTED if column in schema[table]["columns"]]
        assert len(rows["adapters"]) == 3
        assert rows_of(released.engine, last_schema) == rows


@pytest.mark.slow
def test_ours_begin_with_those_of_the_last_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours make, up to its revision, the schema that it shipped: else another one is compared than it runs on."""
    ours, theirs = (Database(f"sqlite:///{tmp_path / name}.db") for name in ("ours", "theirs"))
    migrations.upgrade(ours.engine, last_release.REVISION)
    monkeypatch.setattr(migrations, "SCRIPTS", history.last_release(tmp_path / "code") / "migrations")
    migrations.upgrade(theirs.engine)
    assert schema(theirs) == schema(ours)
    for database in (ours, theirs):
        database.close()


def test_a_database_says_which_versions_it_serves(sqlite: Database) -> None:
    assert migrations.oldest(sqlite.engine) == last_release.REVISION
    migrations.downgrade(sqlite.engine, "base")
    assert migrations.oldest(sqlite.engine) is None
    assert "oldest_version" not in inspect(sqlite.engine).get_table_names()


def test_this_version_serves_a_database_of_the_next_one(sqlite: Database, later: Later) -> None:
    """A server that is started again while others are upgraded; what copies the database is the next one's."""
    patch = later(ADD_COLUMN.format(1))
    migrations.upgrade(sqlite.engine)
    patch.undo()
    check_serves(sqlite)
    assert not is_outgrown(sqlite)
    add_to(sqlite, "acme/more", sample=sample_of("x"), sample_state="ready")
    sentence = f"'next0' (it serves versions from revision '{last_release.REVISION}' on), which this"
    with pytest.raises(Unavailable, match=re.escape(sentence)):
        check_schema(sqlite)


def test_migrating_with_the_older_version_leaves_a_database_that_serves_it(
    database: Database, later: Later, tmp_path: Path
) -> None:
    """Servers are started after `soup migrate`, also on the way back. A SQLite file goes back by its copy."""
    patch = later(ADD_COLUMN.format(1))
    migrations.upgrade(database.engine)
    patch.undo()
    original = schema(database)
    if database.engine.dialect.name == "sqlite":
        with pytest.raises(Unavailable, match=r"'next0'.*start the version that wrote it"):
            migrate(database, backups=tmp_path)
    else:
        assert migrate(database, backups=tmp_path) == Migrated("next0", "next0", is_later=True)
    assert schema(database) == original
    assert migrations.oldest(database.engine) == last_release.REVISION


def test_a_database_from_before_the_first_migration_is_refused(sqlite: Database, tmp_path: Path) -> None:
    with sqlite.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0018'")
        connection.exec_driver_sql("DROP TABLE oldest_version")
    with pytest.raises(Unavailable, match=r"'0018'.*older than revision '0019', migrate it with an earlier"):
        migrate(sqlite, backups=tmp_path)


def test_it_does_not_serve_one_of_the_version_after_that(sqlite: Database, later: Later) -> None:
    """Also where it runs already: it says that it is not ready."""
    assert not is_outgrown(sqlite)
    patch = later(ADD_COLUMN.format(1))
    later(ADD_COLUMN.format(2))
    patch.setattr(migrations, "LAST_RELEASE", "next0")
    migrations.upgrade(sqlite.engine)
    patch.undo()
    with pytest.raises(Unavailable, match=r"'next1' \(it serves versions from revision 'next0' on\), which this"):
        check_serves(sqlite)
    assert is_outgrown(sqlite)
