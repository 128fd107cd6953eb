"""The folders in which trainings save checkpoints, one for each request, and how old ones are removed.

Used by the training job, and by the job runner when a server starts. Servers may share the folder, and the child of a
killed server may still be saving there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

from service.settings import Settings

CHECKPOINT = "checkpoint"
"""Folder in a training's folder that it saves itself in."""
TURN = "turn"
"""File in a training's folder that is locked by the process that trains there."""


def place_of(settings: Settings, key: str) -> Path:
    """The folder of the training that `key`, a digest, stands for."""
    return settings.trainings_dir / key.removeprefix("sha256:")[:32]


def sweep(folder: Path, *, older_than: float) -> int:
    """Remove the folders of trainings that nobody went on with for so many seconds; returns how many there were."""
    if not folder.is_dir():
        return 0
    limit = time.time() - older_than
    left = [place for place in folder.iterdir() if place.is_dir() and _touched(place) < limit and not _at_work(place)]
    for place in left:
        shutil.rmtree(place, ignore_errors=True)
    return len(left)


def _touched(place: Path) -> float:
    """When anything in a training's folder was last written."""
    try:
        return max(path.stat().st_mtime for path in (place, *place.rglob("*")))
    except FileNotFoundError:  # somebody replaces or removes a file of it
        return time.time()


def _at_work(place: Path) -> bool:
    """Whether a process trains there."""
    try:
        handle = os.open(place / TURN, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
