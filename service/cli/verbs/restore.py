"""`soup restore`: a backup into the data folder, or its database into PostgreSQL, while no server runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from service.cli.commands import command
from service.cli.output import as_json, progress_bar, talk
from service.cli.setting_flags import Places, settings_of
from service.settings import Settings


@command
def restore(
    folder: Annotated[Path, typer.Argument(help="Folder that 'soup backup' wrote.")],
    places: Places,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the database that is there; a SQLite file is kept in backups/.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Put a backup back.

    Every server of the database has to be stopped. The whole backup is checked first, and nothing is written where
    anything in it is damaged. A backup of SQLite can be put into PostgreSQL, and the other way.

    \b
    Examples:
      soup restore /backups/soup
      soup restore /backups/soup --data /srv/soup --replace
      SOUP_DATABASE_URL=postgresql+psycopg://soup@db/soup soup restore /backups/soup
    """
    from service import restore as service

    settings = settings_of(Settings, **asdict(places))
    with progress_bar("restoring") as progress:
        done = service.restore(settings, folder, replace=replace, progress=progress)
    manifest = done.manifest
    kept = None if done.replaced is None else str(done.replaced)
    if json:
        as_json({**manifest.model_dump(mode="json"), "object": "restore", "replaced": kept})
        return
    talk(f"Restored the backup of {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC: {manifest.blobs} blobs.")
    if manifest.lacking:
        talk(f"{len(manifest.lacking)} blobs were not whole when it was made and are not in it: see 'soup check'.")
    if kept:
        talk(f"The database that was there is kept at {kept}.")
