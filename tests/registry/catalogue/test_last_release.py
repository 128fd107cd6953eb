"""Migrations since the last release: what its servers use is still there, and a database says whom it serves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import inspect

import migrations
from migrations import last_release
from registry.catalogue import Database
from registry.errors import Unavailable
from service.operations.storage import Migrated, SchemaWatch, check_schema, check_serves, migrate
from tests import last_release as history
from tests.postgres import Databases
from tests.registry.catalogue.conftest import Later
from tests.registry.catalogue.neighbours import copy_rows, rows_of, schema_of, taken_away
from tests.registry.catalogue.test_migrations import fill, schema
from tests.registry.catalogue_rows import add_to, sample_of

CONTRACTED: dict[str, str] = {}
"""What migrations since the last release take away that it no longer used: the sentence, and where that is seen.
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
        before = schema_of(released.engine)
        copy_rows(database.engine, released.engine)
        rows = rows_of(released.engine, before)
        migrations.upgrade(released.engine)
        found = set(taken_away(before, schema_of(released.engine)))
        assert found - CONTRACTED.keys() == set(), "two releases share a schema: take it away one release later"
        assert CONTRACTED.keys() - found == set(), "it is not taken away"
        assert len(rows["adapters"]) == 3
        assert rows_of(released.engine, before) == rows


def test_ours_begin_with_those_of_the_last_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it shipped is what ours make up to its revision: else another schema is compared than it runs on."""
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
    assert not SchemaWatch().is_outgrown(sqlite)
    add_to(sqlite, "acme/more", sample=sample_of("x"), sample_state="ready")
    sentence = f"'next0' (it serves versions from revision '{last_release.REVISION}' on), which this"
    with pytest.raises(Unavailable, match=re.escape(sentence)):
        check_schema(sqlite)


def test_migrating_with_the_older_version_leaves_a_database_that_serves_it(
    database: Database, later: Later, tmp_path: Path
) -> None:
    """What starts servers runs `soup migrate` first, also on the way back. A SQLite file goes back by its copy."""
    patch = later(ADD_COLUMN.format(1))
    migrations.upgrade(database.engine)
    patch.undo()
    before = schema(database)
    if database.engine.dialect.name == "sqlite":
        with pytest.raises(Unavailable, match=r"'next0'.*start the version that wrote it"):
            migrate(database, backups=tmp_path)
    else:
        assert migrate(database, backups=tmp_path) == Migrated("next0", "next0", is_later=True)
    assert schema(database) == before
    assert migrations.oldest(database.engine) == last_release.REVISION


def test_a_database_from_before_the_last_release_is_refused(sqlite: Database, tmp_path: Path) -> None:
    with sqlite.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0018'")
        connection.exec_driver_sql("DROP TABLE oldest_version")
    with pytest.raises(Unavailable, match=r"'0018'.*older than the last release.*'0019'.*migrate it with that"):
        migrate(sqlite, backups=tmp_path)


def test_it_does_not_serve_one_of_the_version_after_that(sqlite: Database, later: Later) -> None:
    """Also where it runs already: it says that it is not ready."""
    schema = SchemaWatch()
    assert not schema.is_outgrown(sqlite)
    patch = later(ADD_COLUMN.format(1))
    later(ADD_COLUMN.format(2))
    patch.setattr(migrations, "LAST_RELEASE", "next0")
    migrations.upgrade(sqlite.engine)
    patch.undo()
    with pytest.raises(Unavailable, match=r"'next1' \(it serves versions from revision 'next0' on\), which this"):
        check_serves(sqlite)
    assert schema.is_outgrown(sqlite)
