"""The schema's history. Called by `soup migrate`, and by `soup serve` for SQLite; imports the tables only.

Migrations run on a connection that is handed in; there is no alembic.ini and no environment to read.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", Path(__file__).parent.as_posix())
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


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
    """Bring a database up to a revision, in one transaction."""
    with engine.connect().execution_options(soup_write=True) as connection, connection.begin():
        command.upgrade(_config(connection), revision)


def downgrade(engine: Engine, revision: str) -> None:
    """Bring a database down to a revision (`base` is empty), in one transaction."""
    with engine.connect().execution_options(soup_write=True) as connection, connection.begin():
        command.downgrade(_config(connection), revision)
