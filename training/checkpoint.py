"""The state of a training on disk, so that a killed training resumes to the same result.

Called by the loop. One file, `checkpoint.safetensors`, holds tensors, and the rest as JSON in its metadata. It is
replaced atomically, so a crash at any moment leaves a valid one. It identifies its training: another recipe, other data
or another base model is refused with the differences. Nothing is ever unpickled.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from registry.errors import Conflict, InvalidManifest, InvalidParameter, Unavailable
from registry.files import loads_strict, replace_file
from training.spec import SAVE_SECONDS

FILE = "checkpoint.safetensors"
FORMAT = "1"
SHOWN = 8


@dataclass(frozen=True)
class Saving:
    """Where a training is saved, and how often: after a number of steps or seconds, whichever comes first, None for
    neither.

    A training that its caller stops or that ends is always saved.
    """

    folder: Path
    every_steps: int | None = None
    every_seconds: float | None = SAVE_SECONDS


@dataclass(frozen=True)
class Saved:
    """The content of a checkpoint: tensors on the CPU by name, and JSON."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


@contextmanager
def locked(folder: Path, conflict: str) -> Iterator[None]:
    """Lock a folder while open, creating it if needed, and remove it afterwards if it is empty.

    Raises Conflict(`conflict`) if another process has it, and Unavailable if it cannot be created or locked. The lock
    is the operating system's, on the folder itself, and ends with the process. The folder is removed only under its
    lock, and a new lock is checked to be on the folder at that path, so two processes never own it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # another process has just removed it
        raise Conflict(conflict, param="out") from None
    except OSError as error:
        raise _unusable(folder, error) from error
    owner = os.getpid()
    try:
        _lock(handle, folder, conflict)
        try:
            yield
        finally:
            if os.getpid() == owner:  # a forked child that ends must not release the lock of its parent
                if _is_current(handle, folder):  # and not another process's, made since
                    with suppress(OSError):  # something was saved
                        folder.rmdir()
                fcntl.flock(handle, fcntl.LOCK_UN)  # a forked child may have the folder open still
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path, conflict: str) -> None:
    """Lock an open folder; raises Conflict also if it was removed before the lock."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(conflict, param="out") from None
    except OSError as error:  # for instance a file system without locks
        raise Unavailable(f"{folder} cannot be locked: {error.strerror or error}.", param="checkpoint") from error
    if not _is_current(handle, folder):
        raise Conflict(conflict, param="out")


def _is_current(handle: int, folder: Path) -> bool:
    """Return True if an open folder is the one at this path now."""
    try:
        return os.path.samestat(os.fstat(handle), folder.stat())
    except FileNotFoundError:
        return False


class Checkpoint:
    """The checkpoint of the training that `identity` (JSON) describes in full. Use it while `locked`.

    Before the base model is loaded the identity has no `init_hash`, which is then not compared.
    """

    def __init__(self, saving: Saving, identity: Mapping[str, Any]) -> None:
        self.folder = saving.folder
        self._saving = saving
        self._identity = json.loads(json.dumps(identity, allow_nan=False))
        self._last = (0, time.monotonic())

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder while open; raises Conflict if another process has it."""
        return locked(self.folder, f"Another training is saving in {self.folder}: choose another folder.")

    def read(self) -> Saved | None:
        """Read the checkpoint; None if there is none.

        Raises Conflict, with each difference, for the checkpoint of another training, and InvalidParameter for a file
        that is no checkpoint.
        """
        path = self.folder / FILE
        if not path.exists():
            return None
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            if about.get("format") != FORMAT:
                raise _unreadable(path)
            identity, state = loads_strict(about["identity"]), loads_strict(about["state"])
        except (safetensors.SafetensorError, InvalidManifest, KeyError, OSError) as error:
            raise _unreadable(path) from error
        self._refuse_another(identity)
        return Saved(tensors, state)

    def _refuse_another(self, identity: object) -> None:
        has_hash = "init_hash" in self._identity
        changes = [
            change for change in differences(identity, self._identity) if has_hash or not change.startswith("init_hash")
        ]
        if changes:
            more = f" (and {len(changes) - 1} more)" if len(changes) > 1 else ""
            raise Conflict(
                f"The checkpoint in {self.folder} is of another training: {changes[0]}{more}. Choose another folder, "
                f"or delete {self.folder / FILE} to start again.",
                param="checkpoint",
                problems=[f"It differs in {change}." for change in changes[:SHOWN]],
            )

    def due(self, step: int) -> bool:
        """Return True if it is time to save after `step`."""
        steps, seconds = self._saving.every_steps, self._saving.every_seconds
        return (steps is not None and step - self._last[0] >= steps) or (
            seconds is not None and time.monotonic() - self._last[1] >= seconds
        )

    def write(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Replace the checkpoint by the state after `step`; raises Unavailable if it cannot be written."""
        about = {
            "format": FORMAT,
            "identity": json.dumps(self._identity, allow_nan=False),
            "state": json.dumps(state, allow_nan=False),
        }
        copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
        try:
            data = safetensors.torch.save(copies, metadata=about)
            replace_file(self.folder / FILE, data, temporary=self.folder / f"{FILE}.new")
        except OSError as error:
            raise _unusable(self.folder, error) from error
        self._last = (step, time.monotonic())


def saved_step(folder: Path) -> int:
    """The step after which the checkpoint in `folder` was written; 0 if none can be read."""
    try:
        with safetensors.safe_open(folder / FILE, framework="pt") as file:
            return int(loads_strict((file.metadata() or {})["state"])["step"])
    except (safetensors.SafetensorError, InvalidManifest, KeyError, TypeError, ValueError, OSError):
        return 0


def discard(folder: Path) -> None:
    """Remove the checkpoint in `folder`, and the folder if it is then empty.

    If another process has locked the folder, nothing is removed.
    """
    with suppress(Conflict), locked(folder, f"Another training is saving in {folder}."):
        (folder / FILE).unlink(missing_ok=True)


def differences(saved: object, current: object, *, at: str = "") -> list[str]:
    """List `name (value there, value here)` for each difference between two JSON values; `at` is their own name."""
    if not (isinstance(saved, dict) and isinstance(current, dict)):
        return [] if saved == current else [f"{at} ({_short(saved)} there, {_short(current)} here)"]
    changes: list[str] = []
    for name in [*current, *(name for name in saved if name not in current)]:
        changes += differences(saved.get(name), current.get(name), at=f"{at}.{name}" if at else str(name))
    return changes


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:28] + "..." + text[-8:]


def _unusable(folder: Path, error: OSError) -> Unavailable:
    return Unavailable(f"Nothing can be saved in {folder}: {error.strerror or error}.", param="checkpoint")


def _unreadable(path: Path) -> InvalidParameter:
    return InvalidParameter(
        f"{path} is not a checkpoint that this version reads: delete it to start again.", param="checkpoint"
    )
