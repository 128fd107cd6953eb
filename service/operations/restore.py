"""Restores a backup into a data folder, or its database into PostgreSQL; no server may use either meanwhile.

Called by `soup restore`. Everything is checked before anything is written. Then the blobs are written, the mark of
their folder, and last, in one step, the database. An interrupted run has no effect: a server refuses to start on blobs
without their database, and the next run finishes.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import migrations
from registry.blobs import LocalBlobs, ServerBlobs, open_blobs
from registry.catalogue.database import Database
from registry.errors import Conflict, DamagedBlob, NotFound, Unavailable
from registry.progress import Progress
from registry.spec import StoreMark
from service.operations import storage
from service.operations.backup import (
    BLOBS,
    KEY,
    MANIFEST,
    Manifest,
    copy_blobs,
    copy_file,
    copy_key,
    read_manifest,
)
from service.settings import Settings

NAMED = 10
"""Damaged blobs that a refusal names."""


@dataclass(frozen=True)
class Restored:
    """The restored manifest; `replaced` is the copy of the previous SQLite file."""

    manifest: Manifest
    replaced: Path | None


def restore(settings: Settings, folder: Path, *, replace: bool, progress: Progress) -> Restored:
    """Restore a backup into the settings' folders and database, durable when this returns.

    Browsers have to sign in again: the sessions of the backup would sign in users who have signed out since.

    Changes nothing if it raises NotFound (the folder is not a complete backup), DamagedBlob or Unavailable (it is
    damaged, or written by a later version), or Conflict (data exists, and `replace` is False).
    """
    manifest = read_manifest(folder)
    _check_version(manifest)
    with ExitStack() as stack:
        stack.enter_context(storage.owned(settings.data))
        database = stack.enter_context(closing(Database(settings.database)))
        file = storage.sqlite_file(database)
        if file is None:  # its rows are replaced, but not its tables
            with database.translate_startup_errors():
                storage.check_known(database, migrations.current(database.engine))
        working = settings.data / "restoring.db" if file is None else file.with_name(f"{file.name}.restoring")
        storage.remove_sqlite(working)
        stack.callback(storage.remove_sqlite, working)
        copy_file(folder / manifest.database, working, manifest.database_digest)
        backup = stack.enter_context(closing(Database(storage.sqlite_url(working))))
        with backup.translate_startup_errors():
            migrations.upgrade(backup.engine)
        with backup.read() as catalogue:
            mark, sizes = catalogue.stores.mark(), catalogue.blobs.sizes()
        with backup.write() as catalogue:
            catalogue.sessions.remove_all()
            catalogue.replicas.remove_all()
            catalogue.removals.cancel_all()
        if mark is None:
            raise Unavailable(f"The database in {folder} has no mark: no server has started over it.", param="folder")
        whole = {digest: size for digest, size in sizes.items() if digest not in manifest.lacking}
        if not replace:
            _check_empty(database, file, open_blobs(settings.blob_place, make=False), sizes)
        _check_whole(folder, manifest, whole, progress)

        blobs = open_blobs(settings.blob_place)
        _copy_blobs(folder, blobs, whole, progress)
        has_others = any(digest not in sizes for digest in blobs.digests())
        blobs.set_aside.set_mark(_mark_of(mark, blobs, has_others=has_others))
        if manifest.admin_key:
            copy_key(folder / KEY, settings.admin_key_path)
        if file is None:
            storage.migrate(database, backups=settings.data / "backups")  # a new one has no tables yet
            _load(backup, database, progress)
            return Restored(manifest, None)
        backup.close()
        return Restored(manifest, storage.replace_sqlite(working, file, backups=settings.data / "backups"))


def _check_version(manifest: Manifest) -> None:
    if not migrations.knows(manifest.revision):
        raise Unavailable(
            f"The backup is at revision {manifest.revision!r}, which this version (revision {migrations.head()!r}) "
            "does not know: restore it with the version that wrote it.",
            param="folder",
        )


def _check_empty(database: Database, file: Path | None, blobs: ServerBlobs, named: dict[str, int]) -> None:
    """Raise Conflict if a database exists, or a blob that the backup does not name."""
    if file is not None and file.exists():
        raise Conflict(
            f"There is a database already, {file}: --replace puts the backup in its place, and keeps a copy."
        )
    if file is None and not storage.is_empty(database):
        raise Conflict("The database holds rows already: --replace deletes them for those of the backup.")
    unnamed = sum(digest not in named for digest in blobs.digests())
    if unnamed:
        raise Conflict(
            f"{blobs.location} holds {unnamed} blobs that the backup does not name: --replace leaves them, "
            "and a server on SQLite without SOUP_BLOBS sets them aside."
        )


def _check_whole(folder: Path, manifest: Manifest, sizes: dict[str, int], progress: Progress) -> None:
    """Raise DamagedBlob unless the backup has all its blobs, each with the bytes of its digest."""
    blobs, bad = LocalBlobs(folder / BLOBS, make=False), list[str]()
    for number, digest in enumerate(sorted(sizes)):
        progress(number, len(sizes), "checking the backup")
        # `is_whole` says that the folder is gone if a file is missing and `incoming` too, which git does not copy
        if not (blobs.place(digest).is_file() and blobs.is_whole(digest)):
            bad.append(digest)
    if bad:
        raise DamagedBlob(
            f"{len(bad)} of the {len(sizes)} blobs in {folder} are missing or damaged, and nothing was restored: "
            f"{', '.join(bad[:NAMED])}{', ...' if len(bad) > NAMED else ''}.",
            param="folder",
        )
    if manifest.admin_key and not (folder / KEY).is_file():
        raise NotFound(f"{MANIFEST} says that {folder} has an {KEY}, and it has none.", param="folder")


def _copy_blobs(folder: Path, blobs: ServerBlobs, sizes: dict[str, int], progress: Progress) -> None:
    """Store the blobs that are missing or damaged."""
    source = LocalBlobs(folder / BLOBS, make=False)
    _, problems = copy_blobs(source, blobs, sizes, lambda digest, _size: blobs.is_whole(digest), progress)
    for digest, problem in problems.items():
        raise DamagedBlob(f"Blob {digest} in {folder} is {problem} since it was checked.", param="folder")


def _mark_of(mark: StoreMark, blobs: ServerBlobs, *, has_others: bool) -> StoreMark:
    """The mark for the blobs: that of the database, or a later one if the store has blobs that the database does not
    name.

    A start then treats the database as an older copy, and deletes nothing.
    """
    if not has_others:
        return mark
    blob_mark = blobs.set_aside.mark()
    return StoreMark(
        store=mark.store, generation=max(mark.generation, 0 if blob_mark is None else blob_mark.generation) + 1
    )


def _load(backup: Database, database: Database, progress: Progress) -> None:
    """Copy all rows into another database, in one transaction."""
    with backup.read() as old, database.write() as new:
        new.all_tables.replace_by(old.all_tables, progress)
