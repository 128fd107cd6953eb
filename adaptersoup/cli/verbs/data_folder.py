"""`soup backup`, `restore` and `check`: database and blobs of a data folder, beside its server or without one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adaptersoup.cli.commands import command
from adaptersoup.cli.output import as_json, progress_bar, talk
from adaptersoup.cli.setting_flags import StorageFlags, settings_of
from adaptersoup.cli.stored_blobs import open_storage, print_unsound
from service.settings import Settings

if TYPE_CHECKING:
    from service.operations.backup import BackedUp
    from service.operations.blob_hashes import Checked


@command
def backup(
    folder: Annotated[Path, typer.Argument(help="Folder of the backup; made, or brought up to date.")],
    storage: StorageFlags,
    with_admin_key: Annotated[
        bool, typer.Option("--with-admin-key", help="Copy the secret in admin.key too; the database has only hashes.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the manifest and the counts as JSON.")] = False,
) -> None:
    """Back up database and blobs into a folder.

    Reads the data folder on the server's machine; the server may run meanwhile. Into the same folder again, only new
    blobs are copied. Fails where a blob is missing or damaged: it is named, and the rest is backed up.

    \b
    Examples:
      soup backup /backups/soup
      soup backup /backups/soup --data /srv/soup --with-admin-key
      SOUP_DATABASE_URL=postgresql+psycopg://soup@db/soup soup backup /backups/soup
    """
    done = _backed_up(settings_of(Settings, **asdict(storage)), folder, with_admin_key=with_admin_key)
    _tell_backup(done, folder, json=json)
    if done.unsound:
        raise typer.Exit(1)


def _backed_up(settings: Settings, folder: Path, *, with_admin_key: bool) -> BackedUp:
    from service.operations.backup import back_up

    key = settings.admin_key_path if with_admin_key else None
    with open_storage(settings) as (database, blobs), progress_bar("backing up") as progress:
        return back_up(database, blobs, folder, admin_key=key, progress=progress)


def _tell_backup(done: BackedUp, folder: Path, *, json: bool) -> None:
    manifest = done.manifest
    if json:
        unsound = [asdict(one) for one in done.unsound]
        as_json({**manifest.model_dump(mode="json"), "new": done.new, "unsound": unsound})
        return
    print_unsound(done.unsound)
    talk(
        f"{folder}: the database at revision {manifest.revision}, {manifest.blobs} blobs of {manifest.bytes} bytes, "
        f"{done.new} of them new, {len(done.unsound)} not whole and left out."
    )


@command
def restore(
    folder: Annotated[Path, typer.Argument(help="Folder that 'soup backup' wrote.")],
    storage: StorageFlags,
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
    from service.operations.restore import restore as restore_backup

    settings = settings_of(Settings, **asdict(storage))
    with progress_bar("restoring") as progress:
        done = restore_backup(settings, folder, replace=replace, progress=progress)
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


RATE = 50 * 1024 * 1024


@command
def check(
    storage: StorageFlags,
    every: Annotated[bool, typer.Option("--all", help="Read and hash all bytes; else sizes are compared.")] = False,
    rate: Annotated[int, typer.Option(min=1, help="With --all: bytes read a second.", metavar="BYTES")] = RATE,
    json: Annotated[bool, typer.Option("--json", help="Print counts and blobs as JSON.")] = False,
) -> None:
    """Check the stored blobs.

    Says which are missing or damaged, and what needs them: adapters, samples, selectors. Reads the data folder on the
    server's machine and writes nothing, so that the server may run meanwhile. Fails where any blob is not whole.

    \b
    Examples:
      soup check
      soup check --all --rate 200000000
      soup check --all --data /srv/soup --json
    """
    found = _checked(settings_of(Settings, **asdict(storage)), every=every, rate=rate)
    _tell_check(found, json=json)
    if found.unsound:
        raise typer.Exit(1)


def _checked(settings: Settings, *, every: bool, rate: int) -> Checked:
    from service.operations import storage
    from service.operations.blob_hashes import Pace, check_hashes

    with open_storage(settings) as (database, blobs), progress_bar("checking blobs") as progress:
        storage.check_serves(database)
        return check_hashes(database, blobs, whole=every, pace=Pace(rate), progress=progress)


def _tell_check(found: Checked, *, json: bool) -> None:
    counts = {problem: found.count(problem) for problem in ("missing", "damaged", "unreadable")}
    if json:
        unsound = [asdict(one) for one in found.unsound]
        as_json({"object": "check", "blobs": found.blobs, "bytes": found.bytes, **counts, "unsound": unsound})
        return
    print_unsound(found.unsound)
    told = ", ".join(f"{count} {problem}" for problem, count in counts.items())
    talk(f"{found.blobs} blobs, {found.bytes} bytes read: {told}.")
