"""The folder of a backup: its manifest, its server, and its files.

    backup.json     what is in it; written last, so that a folder without one is no backup
    soup-*.db       the database, a SQLite file whatever the server's is
    blobs/          the blobs that it names
    admin.key       only where that was asked for

Used by `backup` and `restore`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, StringConstraints, ValidationError

from registry.blobs import BlobStore, ServerBlobs
from registry.errors import Busy, DigestMismatch, InvalidParameter, NotFound, TooLarge, Unavailable
from registry.files import chunks_of, make_directory, open_regular, replace_file
from registry.names import Digest
from registry.progress import Progress
from registry.spec.frozen import Frozen
from service.operations.blob_hashes import Problem

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


def digest_of_file(path: Path) -> str:
    """The digest of a regular file; raises OSError."""
    with open_regular(path) as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


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
    sha = hashlib.sha256()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open_regular(source) as file, os.fdopen(descriptor, "wb") as copy:
        for chunk in chunks_of(file):
            sha.update(chunk)
            copy.write(chunk)
        copy.flush()
        os.fsync(copy.fileno())
    if f"sha256:{sha.hexdigest()}" != digest:
        raise Unavailable(f"{source} is damaged: its bytes are not those that {MANIFEST} names.", param="folder")


def copy_key(source: Path, target: Path) -> None:
    """Copy the file of an admin key, durable, mode 0600."""
    with open_regular(source) as file:
        text = file.read()
    replace_file(target, text, temporary=target.with_name(f"{target.name}.{secrets.token_hex(4)}"), mode=0o600)
