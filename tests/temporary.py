"""Where the folders of tests are made: in memory, where the machine has room there.

Much of what is tested is made durable before it is acknowledged. On a disk every `fsync` of a blob, a folder or a
database waits for it, some milliseconds and many thousand times; in memory it is called all the same, and returns at
once. `PYTEST_DEBUG_TEMPROOT`, which is pytest's own, names another folder.
"""

from __future__ import annotations

import os
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOT = "PYTEST_DEBUG_TEMPROOT"
ROOM = 6 * 2**30
"""Bytes that have to be free there."""


def keep_in_memory(folder: Path = MEMORY) -> None:
    """Have folders of tests made in `folder`, unless it is missing, small or runs no programs, or another is named."""
    try:
        filesystem = os.statvfs(folder)
    except OSError:
        return
    room = filesystem.f_bavail * filesystem.f_frsize
    if room >= ROOM and not filesystem.f_flag & os.ST_NOEXEC and os.access(folder, os.W_OK):
        os.environ.setdefault(ROOT, str(folder))


def root() -> str | None:
    """The folder that they are made in, None for that of the system."""
    return os.environ.get(ROOT)
