"""The data folder: its lock, and the schema of its database.

Called by the runtime and by `soup migrate`. One process owns a data folder at a time; a schema that is behind is
brought up for SQLite after a backup copy, and refused for any other database, where others may be at work.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import migrations
from registry.catalogue.database import Database
from registry.errors import Unavailable
from registry.files import sync_directory

log = logging.getLogger("soup.storage")
LOCK = "lock"


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Own the data folder while open (it is made if need be); raises Unavailable where another server does.

    The lock is the operating system's: it is gone with the process, however that ends.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _close_to_others(folder)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise Unavailable(f"The data folder {folder} cannot be used: {error.strerror}.", param="data") from error
    with os.fdopen(descriptor, "r+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unavailable(
                f"The data folder {folder} is in use by another server (process {file.read().strip() or 'unknown'}): "
                "stop it, or set SOUP_DATA to another folder.",
                param="data",
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _close_to_others(folder: Path) -> None:
    """Take a folder's rights from everybody but its owner; where that cannot be, the log says so."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not mode & 0o077:
        return
    try:
        folder.chmod(mode & 0o700)
    except OSError as error:
        log.warning(
            "the data folder %s is open to other users of this machine (mode %04o), and that cannot be changed (%s): "
            "it holds samples, adapters and the admin key; make it 0700, or set SOUP_DATA to another",
            folder, mode, error.strerror,
        )  # fmt: skip
    else:
        log.info("the data folder %s was open to others (mode %04o) and is 0700 now", folder, mode)


@dataclass(frozen=True)
class Migrated:
    """A database's revision before and after, and the copy that was made before; `before` is None for a new one."""

    before: str | None
    after: str
    backup: Path | None = None


def migrate(database: Database, *, backups: Path) -> Migrated:
    """Bring the schema to this version's; a SQLite file that holds anything is copied to `backups` first.

    Raises Unavailable for a database written by a later version.
    """
    with database.starting():
        before, after = migrations.current(database.engine), migrations.head()
        if before == after:
            return Migrated(before, after)
        _check_known(before)
        backup = None if before is None else _back_up(database, backups, before)
        before = migrations.upgrade(database.engine)  # another process may have been quicker
    return Migrated(before, after, backup)


def check_schema(database: Database) -> None:
    """Raises Unavailable unless the schema is this version's; where it is behind, naming the command."""
    with database.starting():
        found, needed = migrations.current(database.engine), migrations.head()
    if found == needed:
        return
    _check_known(found)
    at = "is empty" if found is None else f"is at revision {found!r}"
    raise Unavailable(
        f"The database {at} and this version needs revision {needed!r}: run 'soup migrate'.", param="database_url"
    )


def _check_known(revision: str | None) -> None:
    if revision is not None and not migrations.knows(revision):
        raise Unavailable(
            f"The database is at revision {revision!r}, which this version (revision {migrations.head()!r}) does not "
            "know: start the version that wrote it.",
            param="database_url",
        )


def is_sqlite(database: Database) -> bool:
    """Whether the database is a file that this process may migrate by itself."""
    return database.engine.dialect.name == "sqlite"


def _back_up(database: Database, folder: Path, revision: str) -> Path | None:
    """A consistent copy of a SQLite file, synced; None for other databases, which have backups of their own."""
    source = database.engine.url.database
    if not is_sqlite(database) or not source:
        return None
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    target = folder / f"{Path(source).stem}-{revision}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.db"
    with closing(sqlite3.connect(source)) as original, closing(sqlite3.connect(target)) as copy:
        original.backup(copy)
    with target.open("rb") as file:
        os.fsync(file.fileno())
    sync_directory(folder)
    return target
