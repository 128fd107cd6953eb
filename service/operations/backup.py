"""Backs up the database and the blobs into a folder, with the server running or stopped.

Called by `soup backup`. The database is copied first, then the blobs that this copy names, because blobs are only
added. The manifest is replaced last, and each run writes its database under a new name: until then the folder is the
previous backup.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import migrations
from registry.blobs import LocalBlobs, ServerBlobs
from registry.catalogue.database import Database
from registry.errors import Conflict, Unavailable
from registry.files import sync_directory
from registry.progress import Progress
from registry.spec import StoreMark
from service.operations import storage
from service.operations.backup_folder import (
    BLOBS,
    KEY,
    MANIFEST,
    Manifest,
    copy_blobs,
    copy_key,
    digest_of_file,
    open_for_backup,
    read_manifest,
    write_manifest,
)
from service.operations.blob_hashes import Unsound, check_same_store


@dataclass(frozen=True)
class BackedUp:
    """The manifest of the folder, the number of new blobs, and the missing or damaged ones of the data folder."""

    manifest: Manifest
    new: int
    unsound: tuple[Unsound, ...]


def back_up(
    database: Database, blobs: ServerBlobs, folder: Path, *, admin_key: Path | None, progress: Progress
) -> BackedUp:
    """Copy the database, its blobs and, if given, the file of the admin key; durable when this returns.

    Raises Unavailable if no server has started over the database, or the blobs belong to another server.
    """
    storage.check_schema(database)
    with open_for_backup(folder):
        working = folder / "database.new"
        storage.remove_sqlite(working)
        storage.copy_database(database, working, progress)
        with closing(Database(storage.sqlite_url(working))) as copy:
            with copy.read() as catalogue:
                mark, sizes = catalogue.stores.mark(), catalogue.blobs.sizes()
            if mark is None:
                raise Unavailable("No server has started over this database yet: there is nothing to back up.")
            check_same_store(mark, blobs)
            _check_ours(folder, mark)
            target = LocalBlobs(folder / BLOBS)
            with _named_faults(target):
                new, problems = copy_blobs(
                    blobs,
                    target,
                    sizes,
                    lambda digest, _size: not target.place(digest).is_symlink() and target.is_whole(digest),
                    progress,
                )
            with copy.read() as catalogue:
                unsound = tuple(
                    Unsound(digest, problem, tuple(catalogue.blobs.references(digest)))
                    for digest, problem in problems.items()
                )
        if admin_key is not None:
            copy_key(admin_key, folder / KEY)
        storage.finish_sqlite(working)
        digest = digest_of_file(working)
        manifest = Manifest(
            store=mark.store,
            made_at=datetime.now(UTC),
            revision=migrations.head(),
            database=f"soup-{digest[7:23]}.db",
            database_digest=digest,
            database_bytes=working.stat().st_size,
            blobs=len(sizes) - len(problems),
            bytes=sum(size for digest, size in sizes.items() if digest not in problems),
            lacking=tuple(problems),
            admin_key=admin_key is not None,
        )
        working.replace(folder / manifest.database)
        sync_directory(folder)
        write_manifest(folder, manifest)
        if admin_key is None:
            (folder / KEY).unlink(missing_ok=True)  # of an earlier backup
    return BackedUp(manifest, new, unsound)


def _check_ours(folder: Path, mark: StoreMark) -> None:
    """Raise Conflict if the folder has a backup of another server, whose database would be removed."""
    if (folder / MANIFEST).exists() and read_manifest(folder).store != mark.store:
        raise Conflict(f"{folder} holds a backup of another server: name another folder.")


@contextmanager
def _named_faults(target: LocalBlobs) -> Iterator[None]:
    """Raise Unavailable that names the folder if the blobs of the backup cannot be written, not those of the server."""
    try:
        yield
    except Unavailable as error:
        if target.state.fault is None:
            raise
        raise Unavailable(
            f"The folder {target.folder} of the backup {target.state.fault.summary}. An earlier backup in it is "
            "unchanged; run the command again when it can be written."
        ) from error
