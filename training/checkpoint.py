"""The state of a training on disk, so that a killed one goes on to the same result.

Called by the loop. One file, `checkpoint.safetensors`: tensors, and the rest as JSON in its metadata, written beside
and renamed, so that a crash at any moment leaves a whole one. It says of which training it is: another recipe, other
data or another base model is refused, naming what differs. Nothing is ever unpickled.
"""

from __future__ import annotations

import errno
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
LOCKING_TRIES = 100
"""Each but the last ended by another process that removed the folder: none but a broken link takes so many."""


@dataclass(frozen=True)
class Saving:
    """Where a training is saved, and how often: after so many steps or seconds, whichever comes first.

    None for either leaves it out; a training that is stopped by its caller, and one that ends, is saved in any case.
    """

    folder: Path
    every_steps: int | None = None
    every_seconds: float | None = SAVE_SECONDS


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds: tensors on the CPU by name, and JSON."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


@contextmanager
def held(folder: Path, taken: str) -> Iterator[None]:
    """Own a folder while open, which is made if need be; raises Conflict, saying `taken`, where another process does.

    The lock is the operating system's and on the folder itself: it is gone with the process, however that ends. Whoever
    removes the folder does so while it is held, and whoever gets the lock looks whether it is of the folder that is
    there: so two never own it. A folder that was made for nothing is removed.
    """
    handle, made = _locked(folder, taken)
    try:
        yield
    finally:
        if made and _is_there(handle, folder):
            with suppress(OSError):  # something was saved
                folder.rmdir()
        os.close(handle)


def _locked(folder: Path, taken: str) -> tuple[int, bool]:
    """The folder, open and locked, and whether it was made here; once more where another removed it meanwhile."""
    for _ in range(LOCKING_TRIES):
        try:
            made = _make(folder)
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _unusable(folder, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise Conflict(taken, param="out") from None
        if _is_there(handle, folder):
            return handle, made
        os.close(handle)
    raise _unusable(folder, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))


def _make(folder: Path) -> bool:
    """Make a folder; False where it was there."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def _is_there(handle: int, folder: Path) -> bool:
    """Whether an open folder is the one that has this path now."""
    try:
        return os.path.samestat(os.fstat(handle), folder.stat())
    except FileNotFoundError:
        return False


class Checkpoint:
    """The checkpoint of the training that `identity` (JSON) describes in full. To be used while `held`."""

    def __init__(self, saving: Saving, identity: Mapping[str, Any]) -> None:
        self.folder = saving.folder
        self._saving = saving
        self._identity = json.loads(json.dumps(identity, allow_nan=False))
        self._last = (0, time.monotonic())

    def held(self) -> AbstractContextManager[None]:
        """Own the folder while open; raises Conflict where another process does."""
        return held(self.folder, f"Another training is saving in {self.folder}: choose another folder.")

    def read(self) -> Saved | None:
        """What is saved, None where nothing is.

        Raises Conflict, with every difference, where it is of another training, and InvalidParameter for a file that
        is no checkpoint.
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
        found = differences(identity, self._identity)
        if found:
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise Conflict(
                f"The checkpoint in {self.folder} is of another training: {found[0]}{more}. Choose another folder, or "
                f"delete {self.folder / FILE} to start anew.",
                param="checkpoint",
                problems=[f"It differs in {one}." for one in found[:SHOWN]],
            )

    def due(self, step: int) -> bool:
        """Whether it is time to save after `step`."""
        steps, seconds = self._saving.every_steps, self._saving.every_seconds
        return (steps is not None and step - self._last[0] >= steps) or (
            seconds is not None and time.monotonic() - self._last[1] >= seconds
        )

    def write(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Put the state after `step` in the place of the one before; raises Unavailable where it cannot be written."""
        about = {"format": FORMAT, "identity": _json(self._identity), "state": _json(state)}
        copies = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
        try:
            data = safetensors.torch.save(copies, metadata=about)
            replace_file(self.folder / FILE, data, temporary=self.folder / f"{FILE}.new")
        except OSError as error:
            raise _unusable(self.folder, error) from error
        self._last = (step, time.monotonic())


def saved_step(folder: Path) -> int:
    """The step after which the checkpoint in `folder` was written; 0 where there is none that can be read."""
    try:
        with safetensors.safe_open(folder / FILE, framework="pt") as file:
            return int(loads_strict((file.metadata() or {})["state"])["step"])
    except (safetensors.SafetensorError, InvalidManifest, KeyError, TypeError, ValueError, OSError):
        return 0


def discard(folder: Path) -> None:
    """Remove the checkpoint in `folder`, and the folder where nothing else is in it: what it was for is done.

    Where another process owns the folder by now, what is in it is that one's, and left to it.
    """
    with suppress(Conflict), held(folder, f"Another training is saving in {folder}."):
        (folder / FILE).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def differences(saved: object, now: object, *, at: str = "") -> list[str]:
    """`name: value there, value here` for everything in which two JSON values differ."""
    if isinstance(saved, dict) and isinstance(now, dict):
        names = [*now, *(name for name in saved if name not in now)]
        return [
            one
            for name in names
            for one in differences(saved.get(name), now.get(name), at=f"{at}.{name}" if at else str(name))
        ]
    return [] if saved == now else [f"{at} ({_short(saved)} there, {_short(now)} here)"]


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:28] + "..." + text[-8:]


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False)


def _unusable(folder: Path, error: OSError) -> Unavailable:
    return Unavailable(f"Nothing can be saved in {folder}: {error.strerror or error}.", param="checkpoint")


def _unreadable(path: Path) -> InvalidParameter:
    return InvalidParameter(
        f"{path} is not a checkpoint that this version reads: delete it to start anew.", param="checkpoint"
    )
