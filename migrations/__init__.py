"""The schema's history. Called by `soup migrate`, and by `soup serve` for SQLite; imports the tables only.

Migrations run on a connection that is handed in; there is no alembic.ini and no environment to read. Of several that
are asked for at once, in one process or in many, each waits for the one before and finds its work done.

A database also says which is the oldest revision whose version may still run on it: that of the last release, since
migrations only add to what that one uses. A version asks for it where it does not know the database's own revision.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Column, Connection, Engine, MetaData, String, Table, delete, insert, inspect, select

from migrations.last_release import REVISION as LAST_RELEASE

SCRIPTS = Path(__file__).parent
_one_at_a_time = threading.Lock()
"""Alembic's context, which the scripts see, is one for the whole process."""
_oldest = Table("oldest_version", MetaData(), Column("revision", String(32), primary_key=True))
"""Beside Alembic's `alembic_version`, and like it no part of any revision: one row."""


def head() -> str:
    """The revision this code expects."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def knows(revision: str) -> bool:
    """Whether this code has a revision; a database may be at one of a later version."""
    try:
        return ScriptDirectory.from_config(_config()).get_revision(revision) is not None
    except CommandError:
        return False


def current(engine: Engine) -> str | None:
    """The revision a database is at; None for an empty one."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def oldest(engine: Engine) -> str | None:
    """The oldest revision whose version may run on a database; None where it does not say so."""
    with engine.connect() as connection:
        if not inspect(connection).has_table(_oldest.name):
            return None
        return connection.scalar(select(_oldest.c.revision))


def upgrade(engine: Engine, revision: str = "head") -> str | None:
    """Bring a database up to a revision, in one transaction: all of it or nothing.

    Returns the revision it was at when it had its turn.
    """
    with _migrating(engine) as connection:
        found = MigrationContext.configure(connection).get_current_revision()
        command.upgrade(_config(connection), revision)
        _say_oldest(connection)
        return found


def downgrade(engine: Engine, revision: str) -> None:
    """Bring a database down to a revision (`base` is empty), in one transaction."""
    with _migrating(engine) as connection:
        command.downgrade(_config(connection), revision)
        _say_oldest(connection)


def is_compared(name: str | None, _kind: str, _parents: object) -> bool:
    """Whether a thing in a database is compared with the tables: not each database's own index of words."""
    return name is None or not name.startswith(("adapter_words_index", _oldest.name))


def _say_oldest(connection: Connection) -> None:
    """Say which versions may run on what the migrations have made: those from the last release on."""
    if MigrationContext.configure(connection).get_current_revision() is None:
        _oldest.drop(connection, checkfirst=True)
        return
    _oldest.create(connection, checkfirst=True)
    connection.execute(delete(_oldest))
    connection.execute(insert(_oldest).values(revision=LAST_RELEASE))


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", SCRIPTS.as_posix())
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


@contextmanager
def _migrating(engine: Engine) -> Iterator[Connection]:
    """A write transaction, which waits for its turn as long as it takes. On SQLite foreign keys are checked at its end.

    SQLite alters most of a table by making another, copying, and dropping the first, which a foreign key to it refuses.
    """
    with _one_at_a_time, engine.connect().execution_options(soup_mode="migrate") as connection:
        if engine.dialect.name != "sqlite":
            with connection.begin():
                yield connection
            return
        _pragma(connection, "foreign_keys=OFF")  # nothing happens inside of a transaction
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
    """Run a pragma on the driver's connection, where it begins no transaction."""
    connection.connection.cursor().execute(f"PRAGMA {pragma}")
