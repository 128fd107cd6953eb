"""The data folder: its lock, and the schema of its database.

Called by the runtime, by `soup migrate`, and by backup and restore. One process owns a data folder at a time. A SQLite
database with an old schema is migrated after a backup copy; any other database is refused, because other servers may
use it. Other databases may also have a later schema that supports this version, so that servers can be upgraded one by
one.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import migrations
from registry.catalogue.database import Database
from registry.errors import Unavailable
from registry.files import sync_directory, sync_file
from registry.progress import Progress, silent

log = logging.getLogger("soup.storage")
LOCK = "lock"


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Own the data folder while open (it is created if necessary); raises Unavailable if another server owns it.

    The operating system holds the lock, and releases it when the process ends for any reason.
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
        owner = os.getpid()
        try:
            yield
        finally:
            if os.getpid() == owner:  # a forked child that ends must not release the lock of its parent
                fcntl.flock(file, fcntl.LOCK_UN)  # and may have the file open still


def _close_to_others(folder: Path) -> None:
    """Remove all rights to a folder but its owner's; if that fails, log a warning."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not mode & 0o077:
        return
    try:
        folder.chmod(mode & 0o700)
    except OSError as error:
        log.warning(
            "the data folder %s is open to other users of this machine (mode %04o), and that cannot be changed (%s): "
            "it holds samples, adapters and the admin key; make it 0700, or set SOUP_DATA to another",
            folder,
            mode,
            error.strerror,
        )
    else:
        log.info("the data folder %s was open to others (mode %04o) and is 0700 now", folder, mode)


@dataclass(frozen=True)
class Migrated:
    """A database's revision before and after, and the backup copy; a new database has no revision before.

    Nothing was done if the schema `is_later`: of a later version that supports this one.
    """

    revision_before: str | None
    revision_after: str
    backup: Path | None = None
    is_later: bool = False


def migrate(database: Database, *, backups: Path) -> Migrated:
    """Migrate the schema to this version; a SQLite file that is not empty is copied to `backups` first.

    A schema of a later version that supports this one does not change, so that this version can start. That never
    applies to a SQLite file, which has one server. Raises Unavailable for a schema that does not support this version.
    """
    with database.translate_startup_errors():
        revision_before, revision_after = migrations.current(database.engine), migrations.head()
        if revision_before == revision_after:
            return Migrated(revision_before, revision_after)
        if revision_before is not None and not is_sqlite(database) and may_serve(database):
            return Migrated(revision_before, revision_before, is_later=True)
        check_known(database, revision_before)
        backup = None if revision_before is None else _back_up(database, backups, revision_before)
        revision_before = migrations.upgrade(database.engine)  # another process may have been quicker
    return Migrated(revision_before, revision_after, backup)


def check_schema(database: Database) -> None:
    """Raise Unavailable unless the schema is this version's; for an older one the message names the command."""
    with database.translate_startup_errors():
        revision, needed = migrations.current(database.engine), migrations.head()
    if revision == needed:
        return
    check_known(database, revision)
    at = "is empty" if revision is None else f"is at revision {revision!r}"
    raise Unavailable(
        f"The database {at} and this version needs revision {needed!r}: run 'soup migrate'.", param="database_url"
    )


def check_serves(database: Database) -> None:
    """Raises Unavailable unless the schema supports this version: its own, or a later compatible one."""
    if may_serve(database):
        log.info("the database is of a later version, of which this one is the neighbour")
    else:
        check_schema(database)


def may_serve(database: Database) -> bool:
    """Return True if a database is of a later version that supports this one."""
    with database.translate_startup_errors():
        revision = migrations.current(database.engine)
        if revision is None or revision == migrations.head() or migrations.knows(revision):
            return False
        oldest = migrations.oldest(database.engine)
    return oldest is not None and migrations.knows(oldest)


def is_outgrown(database: Database) -> bool:
    """Return True if a database was migrated, while this server ran, to a version that no longer supports this one."""
    revision = migrations.current(database.engine)
    return revision is not None and not migrations.knows(revision) and not may_serve(database)


def check_known(database: Database, revision: str | None) -> None:
    """Raise Unavailable if a database is at a revision that this version does not know, one of a later version."""
    if revision is None or migrations.knows(revision):
        return
    oldest = migrations.oldest(database.engine)
    since = "" if oldest is None else f" (it serves versions from revision {oldest!r} on)"
    raise Unavailable(
        f"The database is at revision {revision!r}{since}, which this version (revision {migrations.head()!r}) does "
        "not know: start the version that wrote it. If it is older than revision "
        f"{migrations.first()!r}, migrate it with an earlier release first.",
        param="database_url",
    )


def is_sqlite(database: Database) -> bool:
    """Return True if the database is a file that this process may migrate by itself."""
    return database.engine.dialect.name == "sqlite"


def _back_up(database: Database, folder: Path, revision: str) -> Path | None:
    """A consistent copy of a SQLite file, synced; None for other databases, which have their own backups."""
    source = database.engine.url.database
    if not is_sqlite(database) or not source:
        return None
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for unfinished in folder.glob("*.db.part*"):  # of a process that ended before its copy was whole
        unfinished.unlink()
    target = folder / f"{Path(source).stem}-{revision}-{_moment()}.db"
    temporary = target.with_name(f"{target.name}.part")
    _copy_sqlite(Path(source), temporary)
    temporary.replace(target)
    sync_directory(folder)
    return target


def _copy_sqlite(source: Path, target: Path) -> None:
    """A consistent copy of a SQLite file, even during writes, synced; raises Unavailable."""
    try:
        with closing(sqlite3.connect(source)) as original, closing(sqlite3.connect(target)) as copy:
            original.backup(copy)
    except sqlite3.Error as error:
        raise Unavailable(
            f"The database {source} cannot be copied to {target} ({error}): check that the disk has room."
        ) from error
    sync_file(target)


def _moment() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"


# --- whole databases --------------------------------------------------------------------------------


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file."""
    return f"sqlite:///{path.as_posix()}"


def sqlite_file(database: Database) -> Path | None:
    """The file of a SQLite database, None for any other."""
    return Path(database.engine.url.database or "") if is_sqlite(database) else None


def is_empty(database: Database) -> bool:
    """Return True if a database has no row or no table; raises Unavailable if the schema is of another version."""
    with database.translate_startup_errors():
        if migrations.current(database.engine) is None:
            return True
    check_schema(database)
    with database.read() as catalogue:
        return catalogue.all_tables.is_empty()


def copy_database(database: Database, target: Path, progress: Progress = silent) -> None:
    """A consistent copy of a database, even during writes, as a new SQLite file with this version's schema."""
    source = sqlite_file(database)
    if source is not None:
        _copy_sqlite(source, target)
        return
    with closing(Database(sqlite_url(target))) as copy:
        with copy.translate_startup_errors():
            migrations.upgrade(copy.engine)
        with database.read() as old, copy.write() as new:
            new.all_tables.replace_by(old.all_tables, progress)


def remove_sqlite(path: Path) -> None:
    """Remove a SQLite file with its journal files."""
    for name in (path.name, *_companions(path)):
        path.with_name(name).unlink(missing_ok=True)


def finish_sqlite(path: Path) -> None:
    """Make a closed SQLite file durable; raises Unavailable if it is incomplete (a full disk)."""
    leftovers = [name for name in _companions(path) if path.with_name(name).exists()]
    if leftovers:
        raise Unavailable(
            f"SQLite could not write {leftovers[0]} into {path}: check that the disk has room, and try again."
        )
    sync_file(path)


def replace_sqlite(new: Path, path: Path, *, backups: Path) -> Path | None:
    """Replace a SQLite file durably by another that no process has open; the old file is kept in `backups`."""
    finish_sqlite(new)
    backup = backups / f"{path.stem}-replaced-{_moment()}.db"
    with suppress(sqlite3.Error):  # one that is damaged is kept as it is, in its pieces
        if path.exists():
            with closing(sqlite3.connect(path)) as old:
                old.execute("PRAGMA journal_mode=DELETE").close()  # what is in its log is written into the file
    pieces = [name for name in _companions(path) if path.with_name(name).exists()]
    exists = path.exists()
    if exists or pieces:
        backups.mkdir(parents=True, exist_ok=True, mode=0o700)
    if exists:
        _link_or_copy(path, backup)
    for name in pieces:
        _link_or_copy(path.with_name(name), backup.with_name(name.replace(path.name, backup.name)))
    if exists or pieces:
        sync_directory(backups)
    for name in pieces:  # beside the new file SQLite would take them for its own
        path.with_name(name).unlink()
    new.replace(path)
    sync_directory(path.parent)
    return backup if exists else None


def _link_or_copy(path: Path, target: Path) -> None:
    """Link a file to another path, or copy it, synced, to another file system."""
    try:
        os.link(path, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(path, target)
        sync_file(target)


def _companions(path: Path) -> tuple[str, ...]:
    return f"{path.name}-wal", f"{path.name}-shm", f"{path.name}-journal"
