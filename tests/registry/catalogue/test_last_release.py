"""Migrations since the last release: what its servers use is still there, and a database says whom it serves."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect

import migrations
from migrations import last_release
from registry.catalogue import Database
from registry.errors import Unavailable
from service.operations.storage import Migrated, SchemaWatch, check_schema, check_serves, migrate
from tests import last_release as history
from tests.registry.catalogue.neighbours import Schema, copy_rows, rows_of, schema_of, taken_away
from tests.registry.catalogue.test_migrations import fill, schema
from tests.registry.catalogue_rows import add_ready

CONTRACTED: dict[str, str] = {}
"""What migrations since the last release take away that it no longer used: the sentence, and where that is seen.
Emptied when the pin moves."""
BEYOND = '''
"""A migration of a version to come."""
import sqlalchemy as sa
from alembic import op
revision = "{revision}"
down_revision = "{before}"
def upgrade():
    {upgrade}
def downgrade():
    pass
'''
NEW_TABLE = """op.create_table(
        "planted", sa.Column("id", sa.Integer(), primary_key=True), sa.Column("adapter", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["adapter"], ["adapters.id"]{rule}))"""
ALTER = 'with op.batch_alter_table("{table}") as table:\n        table.{what}'
BROKEN: tuple[dict[str, str], ...] = ({
    ALTER.format(table="jobs", what='drop_column("progress")'): "jobs.progress is gone",
    ALTER.format(table="keys", what='alter_column("prefix", new_column_name="begins")'): "keys.prefix is gone",
    ALTER.format(table="keys", what='alter_column("expires_at", existing_type=sa.BigInteger(), nullable=False)'):
        "keys.expires_at takes no NULL any more",
    ALTER.format(table="adapters", what='add_column(sa.Column("planted", sa.Integer(), nullable=False))'):
        "adapters.planted is new and has to be given",
    ALTER.format(table="adapters", what='alter_column("domain", existing_type=sa.String(200), type_=sa.String(20))'):
        "adapters.domain was VARCHAR(200) and is VARCHAR(20)",
    'op.create_index("ix_once", "jobs", ["created_by"], unique=True)': "jobs has a new unique created_by",
    ALTER.format(table="jobs", what='create_check_constraint("few", "attempts < 3")'):
        "jobs has a new check: attempts < 3",
    ALTER.format(table="jobs", what='alter_column("failures", server_default=sa.text("7"))'):
        "jobs.failures had the default 0 and has 7",
    ALTER.format(table="evaluations", what='drop_constraint("uq_evaluations_adapter_digest_sample_digest")'):
        "evaluations has no unique adapter_digest, sample_digest any more",
    ALTER.format(table="sessions", what='drop_constraint("fk_sessions_key_id", type_="foreignkey")'):
        "sessions.key_id to keys.id is no foreign key any more",
    NEW_TABLE.format(rule=""): "rows of planted keep those of adapters from being deleted",
}, {
    'op.drop_table("evaluations")': "evaluations is gone",
    ALTER.format(
        table="sessions", what="""drop_constraint("fk_sessions_key_id", type_="foreignkey")
        table.create_foreign_key("fk_sessions_key_id", "keys", ["key_id"], ["id"], ondelete="CASCADE")""",
    ): "sessions.key_id to keys.id said NO ACTION on delete and says CASCADE",
})  # fmt: skip
HARMLESS = (
    ALTER.format(table="adapters", what='add_column(sa.Column("planted", sa.String(64)))'),
    ALTER.format(table="jobs", what='add_column(sa.Column("planted", sa.Text(), nullable=False, server_default=""))'),
    'op.create_index("ix_more", "jobs", ["created_by", "attempts"])',
    ALTER.format(table="audit", what='alter_column("action", existing_type=sa.String(64), server_default="x")'),
    NEW_TABLE.format(rule=', ondelete="CASCADE"'),
)  # fmt: skip


@pytest.fixture
def beyond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Add migrations to a copy of ours, each by the body of its upgrade; `undo` of it is this version again."""
    scripts = tmp_path / "scripts"
    shutil.copytree(migrations.SCRIPTS, scripts)  # compiled ones too: their times are kept, so they hold
    with monkeypatch.context() as patch:

        def make(upgrade: str) -> Any:
            patch.setattr(migrations, "SCRIPTS", scripts)
            revision = f"next{len(list((scripts / 'versions').glob('next*.py')))}"
            text = BEYOND.format(revision=revision, before=migrations.head(), upgrade=upgrade)
            (scripts / "versions" / f"{revision}.py").write_text(text)
            return patch

        yield make


@pytest.fixture
def released(databases: Any, tmp_path: Path) -> Iterator[Database]:
    """A database for the last release's schema, still empty."""
    with databases.new(tmp_path / "released", empty=True) as database:
        yield database


def as_released(database: Database) -> Schema:
    """Bring an empty database to the last release's schema, from which ours goes on.

    It was never at ours: a migration back need not bring again what the one forth took.
    """
    migrations.upgrade(database.engine, last_release.REVISION)
    return schema_of(database.engine)


def test_they_take_nothing_away_that_the_last_release_uses(database: Database, released: Database) -> None:
    """Its schema and its rows, as it finds them on a database of this version."""
    fill(database)
    with database.write() as catalogue:
        catalogue.jobs.enqueue("fit", {}, namespace="acme", created_by="k", delay=0.0)
        catalogue.keys.add("lasts", "b" * 64, namespaces=None, scopes={"read"}, prefix="p")
    before = as_released(released)
    copy_rows(database.engine, released.engine)
    rows = rows_of(released.engine, before)
    migrations.upgrade(released.engine)
    found = set(taken_away(before, schema_of(released.engine)))
    assert found - CONTRACTED.keys() == set(), "two releases share a schema: take it away one release later"
    assert CONTRACTED.keys() - found == set(), "it is not taken away"
    assert len(rows["adapters"]) == 3
    assert rows_of(released.engine, before) == rows


def test_ours_begin_with_those_of_the_last_release(
    released: Database, databases: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it shipped is what ours make up to its revision: else another schema is compared than it runs on."""
    as_released(released)
    monkeypatch.setattr(migrations, "SCRIPTS", history.last_release(tmp_path / "code") / "migrations")
    with databases.new(tmp_path / "theirs", empty=True) as theirs:
        migrations.upgrade(theirs.engine)
        assert schema(theirs) == schema(released)


@pytest.mark.parametrize("broken", BROKEN)
def test_what_would_break_it_is_found(released: Database, beyond: Any, broken: dict[str, str]) -> None:
    """Also where the way back leaves it broken, as it does here."""
    for upgrade in broken:
        beyond(upgrade)
    before = as_released(released)
    migrations.upgrade(released.engine)
    found = {one.replace("(", "").replace(")", "") for one in taken_away(before, schema_of(released.engine))}
    assert {sentence.replace("(", "").replace(")", "") for sentence in broken.values()} <= found


def test_what_only_adds_is_allowed(database: Database, beyond: Any) -> None:
    before = schema_of(database.engine)
    for upgrade in HARMLESS:
        beyond(upgrade)
    migrations.upgrade(database.engine)
    assert taken_away(before, schema_of(database.engine)) == []


def test_changed_rows_are_seen(database: Database) -> None:
    fill(database)
    schema = schema_of(database.engine)
    before = rows_of(database.engine, schema)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE adapters SET domain = 'other' WHERE id = 2")
    assert rows_of(database.engine, schema) != before


def test_a_database_says_which_versions_it_serves(database: Database) -> None:
    assert migrations.oldest(database.engine) == last_release.REVISION
    migrations.downgrade(database.engine, "base")
    assert migrations.oldest(database.engine) is None
    assert "oldest_version" not in inspect(database.engine).get_table_names()


def test_this_version_serves_a_database_of_the_next_one(database: Database, beyond: Any) -> None:
    """A server that is started again while others are upgraded; what copies the database is the next one's."""
    patch = beyond(HARMLESS[0])
    migrations.upgrade(database.engine)
    patch.undo()
    check_serves(database)
    assert not SchemaWatch().is_outgrown(database)
    with database.write() as catalogue:
        add_ready(catalogue, "acme/more")
    sentence = f"'next0' (it serves versions from revision '{last_release.REVISION}' on), which this"
    with pytest.raises(Unavailable, match=re.escape(sentence)):
        check_schema(database)


def test_migrating_with_the_older_version_leaves_a_database_that_serves_it(
    database: Database, beyond: Any, tmp_path: Path
) -> None:
    """What starts servers runs `soup migrate` first, also on the way back. A SQLite file goes back by its copy."""
    patch = beyond(HARMLESS[0])
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


def test_a_database_from_before_the_last_release_is_refused(database: Database, tmp_path: Path) -> None:
    with database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0018'")
        connection.exec_driver_sql("DROP TABLE oldest_version")
    with pytest.raises(Unavailable, match=r"'0018'.*older than the last release.*'0019'.*migrate it with that"):
        migrate(database, backups=tmp_path)


def test_it_does_not_serve_one_of_the_version_after_that(database: Database, beyond: Any) -> None:
    """Also where it runs already: it says that it is not ready."""
    schema = SchemaWatch()
    assert not schema.is_outgrown(database)
    patch = beyond(HARMLESS[0])
    beyond(HARMLESS[1])
    patch.setattr(migrations, "LAST_RELEASE", "next0")
    migrations.upgrade(database.engine)
    patch.undo()
    with pytest.raises(Unavailable, match=r"'next1' \(it serves versions from revision 'next0' on\), which this"):
        check_serves(database)
    assert schema.is_outgrown(database)
