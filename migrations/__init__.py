"""Migrations of the schema. Called by `soup migrate`, and by `soup serve` for SQLite; imports the tables only.

Migrations run on a given connection; there is no alembic.ini, and no environment variable is read. Concurrent upgrades,
in one process or in many, run one after the other, and the later ones have nothing left to do.

A database also stores the oldest revision whose version may still run on it: that of the last release, since migrations
only add to what that one uses. A version reads it if it does not know the database's own revision.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Column, Connection, Engine, MetaData, String, Table, delete, insert, inspect, select

from migrations.last_release import REVISION as LAST_RELEASE

SCRIPTS = Path(__file__).parent
_lock = threading.Lock()
"""Alembic's context, which the scripts use, is global to the process."""
_oldest_version = Table("oldest_version", MetaData(), Column("revision", String(32), primary_key=True))
"""One row; like Alembic's `alembic_version`, the table belongs to no revision."""


def head() -> str:
    """The revision this code expects."""
    revision = _scripts(SCRIPTS).get_current_head()
    assert revision is not None
    return revision


def first() -> str:
    """The oldest revision that this code migrates: that of the release before the last."""
    revision = _scripts(SCRIPTS).get_base()
    assert revision is not None
    return revision


def knows(revision: str) -> bool:
    """Return True if this version has a revision; a database may be at one of a later version."""
    try:
        return _scripts(SCRIPTS).get_revision(revision) is not None
    except CommandError:
        return False


def current(engine: Engine) -> str | None:
    """The revision a database is at; None for an empty one."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def oldest(engine: Engine) -> str | None:
    """The oldest revision whose version may run on a database; None if the database does not have it."""
    with engine.connect() as connection:
        if not inspect(connection).has_table(_oldest_version.name):
            return None
        return connection.scalar(select(_oldest_version.c.revision))


def upgrade(engine: Engine, revision: str = "head") -> str | None:
    """Upgrade a database to a revision, in one transaction; returns the revision it had when that began."""
    with _migrating(engine) as connection:
        previous = MigrationContext.configure(connection).get_current_revision()
        command.upgrade(_config(connection), revision)
        _store_oldest(connection)
        return previous


def downgrade(engine: Engine, revision: str) -> None:
    """Downgrade a database to a revision (`base` is empty), in one transaction."""
    with _migrating(engine) as connection:
        command.downgrade(_config(connection), revision)
        _store_oldest(connection)


def is_compared(name: str | None, _kind: str, _parents: object) -> bool:
    """Return True if a table or index is to be compared with the models: not words' index, nor `oldest_version`."""
    return name is None or not name.startswith(("adapter_words_index", _oldest_version.name))


def _store_oldest(connection: Connection) -> None:
    """Store the oldest revision whose version may run on the migrated schema: that of the last release."""
    if MigrationContext.configure(connection).get_current_revision() is None:
        _oldest_version.drop(connection, checkfirst=True)
        return
    _oldest_version.create(connection, checkfirst=True)
    connection.execute(delete(_oldest_version))
    connection.execute(insert(_oldest_version).values(revision=LAST_RELEASE))


@cache
def _scripts(folder: Path) -> ScriptDirectory:
    """The migrations of a folder, which are read once."""
    return ScriptDirectory(str(folder))


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", SCRIPTS.as_posix())
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


@contextmanager
def _migrating(engine: Engine) -> Iterator[Connection]:
    """A write transaction, which waits for the lock without limit. On SQLite foreign keys are checked at its end.

    SQLite alters a table by creating another, copying, and dropping the first, which foreign keys to it would forbid.
    """
    with _lock, engine.connect().execution_options(soup_mode="migrate") as connection:
        if engine.dialect.name != "sqlite":
            with connection.begin():
                yield connection
            return
        _pragma(connection, "foreign_keys=OFF")  # has no effect inside a transaction
        try:
            with connection.begin():
                yield connection
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
                if broken:
                    raise RuntimeError(
                        f"the migration leaves {len(broken)} rows of {broken[0][0]} without their parent"
                    )
        finally:
            _pragma(connection, "foreign_keys=ON")


def _pragma(connection: Connection, pragma: str) -> None:
    """Run a pragma on the driver's connection, outside of a transaction."""
    connection.connection.cursor().execute(f"PRAGMA {pragma}")
