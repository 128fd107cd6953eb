"""Files whose bytes are changed where they lie, as a disk or a careless copy does it."""

from __future__ import annotations

import os
from pathlib import Path


def overwrite(path: Path, data: bytes) -> None:
    """Other bytes in the same file, a second later by its times: clocks of file systems are coarse."""
    later = path.stat().st_mtime_ns + 10**9
    path.write_bytes(data)
    os.utime(path, ns=(later, later))


def flip(path: Path, *, at: int = -1) -> bytes:
    """Change one bit of a file in its place; returns what it held."""
    original = path.read_bytes()
    changed = bytearray(original)
    changed[at] ^= 1
    overwrite(path, bytes(changed))
    return original
