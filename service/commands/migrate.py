"""`soup migrate`: the database's schema to this version's. `soup serve` does it by itself for SQLite only."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from registry.errors import Unavailable
from service.commands.output import as_json, data, talk
from service.commands.serve import settings_of


def migrate(
    data_folder: Annotated[Path | None, typer.Option("--data", help="Folder of the database (SOUP_DATA).")] = None,
    database_url: Annotated[
        str | None, typer.Option("--database-url", help="SQLAlchemy URL of the database (SOUP_DATABASE_URL).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print revisions and backup as JSON.")] = False,
) -> None:
    """Bring the database's schema up to date.

    A SQLite database is copied to <data>/backups first; the server must be stopped. Prints the revision.

    \b
    Examples:
      soup migrate
      soup migrate --data /srv/soup
      SOUP_DATABASE_URL=postgresql+psycopg://soup@db/soup soup migrate
    """
    from sqlalchemy.exc import SQLAlchemyError

    from registry.catalogue.database import Database
    from service import storage

    settings = settings_of(data=data_folder, database_url=database_url)
    try:
        with storage.owned(settings.data), closing(Database(settings.database)) as database:
            done = storage.migrate(database, backups=settings.data / "backups")
    except (SQLAlchemyError, ModuleNotFoundError) as error:
        first = str(error).splitlines()[0]
        raise Unavailable(f"The database cannot be used ({first}): check SOUP_DATABASE_URL.") from None
    backup = None if done.backup is None else str(done.backup)
    if json:
        as_json({"object": "migration", "before": done.before, "after": done.after, "backup": backup})
        return
    data(done.after)
    if done.before == done.after:
        talk("The schema was up to date.")
    else:
        talk(f"From {done.before or 'nothing'} to {done.after}." + (f" A copy is at {backup}." if backup else ""))
