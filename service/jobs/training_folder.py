"""The folders in which trainings save checkpoints, one for each request, and how old ones are removed.

Used by the training job, and by `training_requests` for the job runner. Servers may share the folder, and the child of
a killed server may still be saving there.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Collection
from pathlib import Path

from service.settings import Settings

CHECKPOINT = "checkpoint"
"""Name of the folder of checkpoints in a training's folder."""
TURN = "turn"
"""Name of the file in a training's folder that the training process locks."""


def training_folder(settings: Settings, key: str) -> Path:
    """The folder of the training whose request has the digest `key`."""
    return settings.trainings_dir / key.removeprefix("sha256:")[:32]


def sweep(folder: Path, *, older_than: float, used: Collection[str] = ()) -> int:
    """Remove the folders of trainings, except those named in `used`, that were not written for `older_than` seconds.

    Returns their number. Folders of other names are not the server's, and stay.
    """
    if not folder.is_dir():
        return 0
    limit = time.time() - older_than
    expired = [
        training
        for training in folder.iterdir()
        if re.fullmatch("[0-9a-f]{32}", training.name)
        and training.name not in used
        and training.is_dir()
        and _last_written(training) < limit
        and not _is_locked(training)
    ]
    for training in expired:
        shutil.rmtree(training, ignore_errors=True)
    return len(expired)


def _last_written(training: Path) -> float:
    """When anything in a training's folder was last written."""
    try:
        return max(path.stat().st_mtime for path in (training, *training.rglob("*")))
    except FileNotFoundError:  # another process replaces or removes a file
        return time.time()


def _is_locked(training: Path) -> bool:
    """Return True if a process trains in this folder."""
    try:
        handle = os.open(training / TURN, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
