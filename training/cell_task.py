"""Train a cell of a grid as a task, in a process of this machine or on another machine.

Called by `training.sweep`. A task on another machine receives the texts and a fusion's members, and returns its adapter
as bytes. The files of the base model must be on that machine at the same path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from registry.base_model import LoadedBase, load_base
from registry.base_model.fingerprint import check_fingerprint
from registry.spec import BaseEntry
from registry.tasks.task import Watch
from training.request import TrainingRun
from training.spec import FusionRequest
from training.train import train

Files = Mapping[str, bytes]
"""The files of a directory by name."""


@dataclass(frozen=True)
class CellTask:
    """A training on the base model with this fingerprint; on another machine with the files of fusion members."""

    entry: BaseEntry
    fingerprint: str
    threads: int
    run: TrainingRun
    members: tuple[Files, ...] = ()


def train_here(cell: CellTask, watch: Watch) -> None:
    """Train on this machine, to the directory that the run names."""
    torch.set_num_threads(cell.threads)
    train(cell.run, base_of(cell.entry, cell.fingerprint), progress=watch.progress, should_stop=watch.should_stop)


def train_elsewhere(cell: CellTask, watch: Watch) -> dict[str, Files]:
    """Train in a temporary folder on the shared texts (train and valid); return the written directories by name."""
    with TemporaryDirectory(prefix="soup-cell-") as temporary:
        folder = Path(temporary)
        run, texts = cell.run, dict(zip(("train", "valid"), watch.shared, strict=True))
        files = {name: folder / f"{name}{''.join(getattr(run, name).suffixes)}" for name in texts}
        for name, path in files.items():
            path.write_bytes(texts[name])
        members = tuple(folder / f"member{number}" for number in range(len(cell.members)))
        for member, contents in zip(members, cell.members, strict=True):
            member.mkdir()
            for file, data in contents.items():
                (member / file).write_bytes(data)
        placed = run.model_copy(
            update={
                **files,
                "called": (str(run.train), str(run.valid)),
                "members": members,
                "out": folder / "out" / run.out.name,
                "checkpoint": None,
            }
        )
        train_here(replace(cell, run=placed), watch)
        return {path.name: files_in(path, Path.read_bytes) for path in (folder / "out").iterdir()}


def files_in(folder: Path, read: Callable[[Path], bytes]) -> Files:
    """The files of a directory by name, each loaded with `read`."""
    return {path.name: read(path) for path in sorted(folder.iterdir())}


def members_of(run: TrainingRun, read: Callable[[Path], bytes]) -> tuple[Files, ...]:
    """The files of a fusion's members, in the order of its spec."""
    paths = run.spec.adapter.members if isinstance(run.spec.adapter, FusionRequest) else ()
    return tuple(files_in(Path(path), read) for path in paths)


def base_of(entry: BaseEntry, fingerprint: str) -> LoadedBase:
    """Load the base model of an entry, once a process; raises Unavailable if this machine has another version."""
    base = _loaded(entry)
    check_fingerprint(entry, base.shape.fingerprint, expected=fingerprint)
    return base


_loaded = lru_cache(maxsize=1)(load_base)
