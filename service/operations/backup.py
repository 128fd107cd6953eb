"""Backs up the database and the blobs into a folder, with the server running or stopped.

    backup.json     what is in it; written last, so that a folder without one is no backup
    soup-*.db       the database, a SQLite file whatever the server's is
    blobs/          the blobs that it names
    admin.key       only where that was asked for

Called by `soup backup`; `restore` reads the folder. The database is copied first, then the blobs that this copy names,
because blobs are only added. The manifest is replaced last, and each run writes its database under a new name: until
then the folder is the previous backup.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, StringConstraints, ValidationError

import migrations
from registry.blobs import BlobStore, LocalBlobs, ServerBlobs
from registry.catalogue.database import Database
from registry.errors import Busy, Conflict, DigestMismatch, InvalidParameter, NotFound, TooLarge, Unavailable
from registry.files import make_directory, open_regular, replace_file, sync_directory, sync_file
from registry.names import Digest, file_digest
from registry.progress import Progress
from registry.spec import StoreMark
from registry.spec.frozen import Frozen
from service.operations import storage
from service.operations.blob_hashes import Problem, Unsound, check_same_store, unsound_blobs

MANIFEST, LOCK, KEY, BLOBS = "backup.json", "backup.lock", "admin.key", "blobs"
DATABASE = r"^soup-[0-9a-f]{16}\.db$"


class Manifest(Frozen):
    """The contents of a backup: the database by its digest, the blobs that it names by their number and bytes."""

    object: Literal["backup"] = "backup"
    format: Literal[1] = 1
    store: str
    """The server that it belongs to, by the mark of the database."""
    made_at: AwareDatetime
    revision: str
    database: Annotated[str, StringConstraints(pattern=DATABASE)]
    database_digest: Digest
    database_bytes: int = Field(ge=0)
    blobs: int = Field(ge=0)
    bytes: int = Field(ge=0)
    lacking: tuple[Digest, ...] = ()
    """Blobs of the database that were missing or damaged during the backup."""
    admin_key: bool = False


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
            unsound = unsound_blobs(copy, problems)
        if admin_key is not None:
            copy_key(admin_key, folder / KEY)
        storage.finish_sqlite(working)
        digest = file_digest(working)
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


# --- the folder ------------------------------------------------------------------------------------


@contextmanager
def open_for_backup(folder: Path) -> Iterator[None]:
    """Open a folder to write a backup into, exclusively; it is created if necessary, and only its owner can read it.

    Raises InvalidParameter for a folder with other files, and Busy while another backup is written into it.
    """
    ours = any((folder / name).is_file() for name in (LOCK, MANIFEST))
    if folder.is_dir() and any(folder.iterdir()) and not ours:
        raise InvalidParameter(f"{folder} is not empty and is no backup: name another folder.", param="folder")
    umask_before = os.umask(0o077)  # every file of it is 0600, every folder 0700
    try:
        make_directory(folder)
        folder.chmod(0o700)
        with (folder / LOCK).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Busy(f"Another backup is being written into {folder}: wait until it is done.") from None
            yield
    finally:
        os.umask(umask_before)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder; raises NotFound without a complete backup, and InvalidParameter for another format."""
    try:
        with open_regular(folder / MANIFEST) as file:
            return Manifest.model_validate_json(file.read())
    except FileNotFoundError:
        raise NotFound(
            f"There is no whole backup in {folder}: it has no {MANIFEST}, which 'soup backup' writes last.",
            param="folder",
        ) from None
    except ValidationError:
        raise InvalidParameter(
            f"{folder / MANIFEST} is not what this version of 'soup backup' writes.", param="folder"
        ) from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, which completes the backup; then remove other databases from the folder."""
    path = folder / MANIFEST
    temporary = folder / f"{MANIFEST}.new"
    replace_file(path, manifest.model_dump_json(indent=2).encode() + b"\n", temporary=temporary, mode=0o600)
    for database in folder.glob("soup-*.db"):
        if re.fullmatch(DATABASE, database.name) and database.name != manifest.database:
            database.unlink()


def copy_blob(source: ServerBlobs, target: BlobStore, digest: str, size: int) -> Problem | None:
    """Copy a blob of this size to another store, and hash it on the way; return its problem in the first store,
    if any.
    """
    try:
        with target.writer(digest, max_bytes=size, length=size) as writer:
            for chunk in source.chunks(digest):
                writer.write(chunk)
            writer.commit()
    except (DigestMismatch, TooLarge):
        return "damaged"
    except FileNotFoundError:
        return "missing"
    except OSError:
        return "unreadable"
    return None


def copy_blobs(
    source: ServerBlobs,
    target: BlobStore,
    sizes: Mapping[str, int],
    is_there: Callable[[str, int], bool],
    progress: Progress,
) -> tuple[int, dict[str, Problem]]:
    """Copy the blobs of these sizes that are not there; return their number, and the problems of the others."""
    new, problems = 0, dict[str, Problem]()
    for number, (digest, size) in enumerate(sorted(sizes.items())):
        progress(number, len(sizes), f"{new} new, {len(problems)} not whole")
        if is_there(digest, size):
            continue
        problem = copy_blob(source, target, digest, size)
        if problem is None:
            new += 1
        else:
            problems[digest] = problem
    progress(len(sizes), len(sizes), f"{new} new, {len(problems)} not whole")
    return new, problems


def copy_file(source: Path, target: Path, digest: str) -> None:
    """Copy a file with this digest, synced, mode 0600; raises Unavailable if its digest differs."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open_regular(source) as file, os.fdopen(descriptor, "wb") as copy:
        shutil.copyfileobj(file, copy)
    sync_file(target)
    if file_digest(target) != digest:
        raise Unavailable(f"{source} is damaged: its bytes are not those that {MANIFEST} names.", param="folder")


def copy_key(source: Path, target: Path) -> None:
    """Copy the file of an admin key, durable, mode 0600."""
    with open_regular(source) as file:
        text = file.read()
    replace_file(target, text, temporary=target.with_name(f"{target.name}.{secrets.token_hex(4)}"), mode=0o600)
