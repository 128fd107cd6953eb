"""`soup migrate`: migrates the database's schema to this version; `soup serve` does so by itself for SQLite only."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from adaptersoup.cli.commands import command
from adaptersoup.cli.output import answer
from adaptersoup.cli.setting_flags import settings_of
from service.settings import Settings


@command
def migrate(
    data_folder: Annotated[Path | None, typer.Option("--data", help="Folder of the database (SOUP_DATA).")] = None,
    database_url: Annotated[
        str | None, typer.Option(help="URL of the database; use SOUP_DATABASE_URL for one with a password.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print revisions and backup as JSON.")] = False,
) -> None:
    """Update the schema of the database.

    A SQLite database is first copied to <data>/backups; its server must be stopped. On PostgreSQL, writes and other
    migrations wait meanwhile, and servers of the last release continue: migrate first, then replace them one by one.
    The schema of the next release is not changed. Prints the revision.

    \b
    Examples:
      soup migrate
      soup migrate --data /srv/soup
      SOUP_DATABASE_URL=postgresql+psycopg://soup@db/soup soup migrate
    """
    from registry.catalogue.database import Database
    from service.operations import storage

    settings = settings_of(Settings, data=data_folder, database_url=database_url)
    with (
        closing(Database(settings.database)) as database,
        storage.owned(settings.data) if storage.is_sqlite(database) else nullcontext(),
    ):
        migration = storage.migrate(database, backups=settings.data / "backups")
    backup = None if migration.backup is None else str(migration.backup)
    if migration.is_later:
        note = "The database is of a later version, beside which this one serves: nothing was changed."
    elif migration.revision_before == migration.revision_after:
        note = "The schema was up to date."
    else:
        copy = f" A copy is at {backup}." if backup else ""
        note = f"From {migration.revision_before or 'nothing'} to {migration.revision_after}.{copy}"
    revisions = {"before": migration.revision_before, "after": migration.revision_after}
    value = {"object": "migration", **revisions, "backup": backup}
    answer(value, migration.revision_after, json=json, note=note)
