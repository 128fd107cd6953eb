"""`soup backup`, `restore` and `check`: work on a data folder's database and blobs, whether its server runs or not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from adaptersoup.cli.commands import command
from adaptersoup.cli.output import answer, progress_bar
from adaptersoup.cli.setting_flags import StorageFlags, settings_of
from adaptersoup.cli.stored_blobs import open_storage, print_blobs
from service.settings import Settings


@command
def backup(
    folder: Annotated[Path, typer.Argument(help="Folder of the backup, new or to update.")],
    storage: StorageFlags,
    with_admin_key: Annotated[
        bool, typer.Option("--with-admin-key", help="Also copy the secret in admin.key; the database has only hashes.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the manifest and the counts as JSON.")] = False,
) -> None:
    """Back up database and blobs into a folder.

    Reads the data folder on the server's machine; the server can run meanwhile. Copies only new blobs into an existing
    backup. If a blob is missing or damaged, the command names it, backs up the rest and fails.

    \b
    Examples:
      soup backup /backups/soup
      soup backup /backups/soup --data /srv/soup --with-admin-key
      SOUP_DATABASE_URL=postgresql+psycopg://soup@db/soup soup backup /backups/soup
    """
    from service.operations.backup import back_up

    settings = settings_of(Settings, **asdict(storage))
    key = settings.admin_key_path if with_admin_key else None
    with open_storage(settings) as (database, blobs), progress_bar("backing up") as progress:
        backed_up = back_up(database, blobs, folder, admin_key=key, progress=progress)
    manifest = backed_up.manifest
    note = (
        f"{folder}: the database at revision {manifest.revision}, {manifest.blobs} blobs of {manifest.bytes} bytes, "
        f"{backed_up.new} of them new, {len(backed_up.unsound)} left out (missing or damaged)."
    )
    print_blobs({**manifest.model_dump(mode="json"), "new": backed_up.new}, backed_up.unsound, json=json, note=note)


@command
def restore(
    folder: Annotated[Path, typer.Argument(help="Folder that `soup backup` wrote.")],
    storage: StorageFlags,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the existing database; a SQLite file is kept in backups/.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Restore a backup.

    Stop all servers of the database first. The command checks the whole backup, and writes nothing if any of it is
    damaged. A backup of SQLite can be restored to PostgreSQL, and the reverse.

    \b
    Examples:
      soup restore /backups/soup
      soup restore /backups/soup --data /srv/soup --replace
      SOUP_DATABASE_URL=postgresql+psycopg://soup@db/soup soup restore /backups/soup
    """
    from service.operations.restore import restore as restore_backup

    settings = settings_of(Settings, **asdict(storage))
    with progress_bar("restoring") as progress:
        restored = restore_backup(settings, folder, replace=replace, progress=progress)
    manifest = restored.manifest
    replaced = None if restored.replaced is None else str(restored.replaced)
    notes = [f"Restored the backup of {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC: {manifest.blobs} blobs."]
    if manifest.lacking:
        lacking = len(manifest.lacking)
        notes.append(f"{lacking} blobs were not whole when it was made and are not in it: see 'soup check'.")
    if replaced:
        notes.append(f"The database that was there is kept at {replaced}.")
    value = {**manifest.model_dump(mode="json"), "object": "restore", "replaced": replaced}
    answer(value, json=json, note="\n".join(notes))


RATE = 50 * 1024 * 1024
"""Default of `soup check --rate`, in bytes a second."""


@command
def check(
    storage: StorageFlags,
    whole: Annotated[bool, typer.Option("--all", help="Read and hash all bytes, instead of comparing sizes.")] = False,
    rate: Annotated[int, typer.Option(min=1, help="With --all: bytes to read per second.", metavar="BYTES")] = RATE,
    json: Annotated[bool, typer.Option("--json", help="Print counts and blobs as JSON.")] = False,
) -> None:
    """Check the stored blobs.

    Lists missing and damaged blobs, with the adapters, samples and selectors that need them, and fails if there are
    any. Reads the data folder on the server's machine and writes nothing, so the server can run meanwhile.

    \b
    Examples:
      soup check
      soup check --all --rate 200000000
      soup check --all --data /srv/soup --json
    """
    from service.operations.blob_hashes import check_hashes
    from service.operations.storage import check_serves

    settings = settings_of(Settings, **asdict(storage))
    with open_storage(settings) as (database, blobs), progress_bar("checking blobs") as progress:
        check_serves(database)
        checked = check_hashes(database, blobs, rate=rate if whole else None, progress=progress)
    counts = {problem: checked.count(problem) for problem in ("missing", "damaged", "unreadable")}
    problems = ", ".join(f"{count} {problem}" for problem, count in counts.items())
    value = {"object": "check", "blobs": checked.blobs, "bytes": checked.bytes, **counts}
    note = f"{checked.blobs} blobs, {checked.bytes} bytes read: {problems}."
    print_blobs(value, checked.unsound, json=json, note=note)
