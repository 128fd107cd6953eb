"""Files and names that outlast a crash of the machine. Standard library only.

Used by whatever keeps state in files: the blobs, the checkpoints of a training, the file of the admin key.
"""

from __future__ import annotations

import os
from pathlib import Path


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
