"""The schema's history. Called by `soup migrate`, and by `soup serve` for SQLite; imports the tables only.

Migrations run on a connection that is handed in; there is no alembic.ini and no environment to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

SCRIPTS = Path(__file__).parent


def head() -> str:
    """The revision this code expects."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def current(engine: Engine) -> str | None:
    """The revision a database is at; None for an empty one."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Bring a database up to a revision, in one transaction: all of it or nothing."""
    with _migrating(engine) as connection:
        command.upgrade(_config(connection), revision)


def downgrade(engine: Engine, revision: str) -> None:
    """Bring a database down to a revision (`base` is empty), in one transaction."""
    with _migrating(engine) as connection:
        command.downgrade(_config(connection), revision)


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", SCRIPTS.as_posix())
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


@contextmanager
def _migrating(engine: Engine) -> Iterator[Connection]:
    """A write transaction. On SQLite foreign keys are off in it and checked at its end.

    SQLite alters most of a table by making another, copying, and dropping the first, which a foreign key to it refuses.
    """
    with engine.connect().execution_options(soup_mode="write") as connection:
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
