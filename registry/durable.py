"""Files and names that outlast a crash of the machine. Standard library only.

Used by whatever keeps state in files: the blobs, the checkpoints of a training, the file of the admin key.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
from pathlib import Path

AT_FDCWD, RENAME_EXCHANGE = -100, 2
"""Of Linux's renameat2(2): paths are taken as ever, and the two names are swapped."""


def replace_file(path: Path, data: bytes, *, beside: Path, mode: int = 0o666) -> None:
    """Make `path` hold `data`: after any crash it is the old file or the whole new one.

    The bytes are written to `beside`, a path in the same folder that nobody else writes to; what a crash left there
    is removed. `mode` is the file's from the start, less the umask. Raises OSError, and `path` is as it was unless
    only its folder could not be synced.
    """
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it that are missing, all their names durable."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        sync_folder(path.parent)


def exchange(one: Path, other: Path) -> None:
    """Swap two names of one file system, in one step where the system can: after any crash both are there.

    Elsewhere (no Linux, some network file systems) they are renamed one after the other: a crash in between leaves
    `other` under a hidden name `.NAME.*.old` in its folder. Raises OSError, and then both are as they were.
    """
    if _exchanged(one, other):
        return
    aside = other.parent / f".{other.name}.{secrets.token_hex(4)}.old"
    other.rename(aside)
    try:
        one.rename(other)
    except OSError:
        aside.rename(other)
        raise
    aside.rename(one)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether the system has swapped them; raises OSError where it can and did not."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP}:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))
