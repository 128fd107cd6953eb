"""A cell of a grid as a piece of work: of files that are there, or with its files sent along and the adapter sent back.

Called by `parallel_sweep`. Both train by the same lines on as many threads as the piece says, so that they make the
same bytes; of the base model a machine must have the files, which are known by their fingerprint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from registry.base_model import LoadedBase, load_base
from registry.base_model.same_files import check_same, named_machine
from registry.errors import Incompatible, Unavailable
from registry.pieces import MachineProblem, Watch, own_disk, own_folder
from registry.spec import BaseEntry
from training.checkpoint import FILE
from training.request import TrainingRun
from training.spec import FusionRequest
from training.train import train

Files = Mapping[str, bytes]
"""A flat directory: contents by name."""


@dataclass(frozen=True)
class CellHere:
    """A training of files that the process sees, on a base model of this fingerprint and so many threads."""

    entry: BaseEntry
    fingerprint: str
    threads: int
    run: TrainingRun


@dataclass(frozen=True)
class TextsSent:
    """The two files of a domain, which its cells share."""

    train: bytes
    valid: bytes


@dataclass(frozen=True)
class CellSent:
    """A training with what it reads beside its texts: paths of `cell.run` say how files are called, and are opened by
    nobody."""

    cell: CellHere
    members: tuple[Files, ...] = ()
    """Of a fusion, in the order of its spec."""
    checkpoint: bytes | None = None
    """What an earlier run saved, to go on from."""


def train_here(cell: CellHere, watch: Watch) -> None:
    """Train to the directory that the run names; raises MachineProblem as `base_of` and `own_disk` do."""
    torch.set_num_threads(cell.threads)
    base = base_of(cell.entry, cell.fingerprint)
    with own_disk():
        train(cell.run, base, progress=watch.progress, should_stop=watch.should_stop)


def train_sent(sent: CellSent, watch: Watch) -> dict[str, Files]:
    """Train on the TextsSent that the piece shares, in a folder that is gone afterwards: the directories that were
    made by name, a bank before its merge.

    Raises MachineProblem, with the machine's name, where the base model is not there, or is another, and where the
    disk is full or fails.
    """
    with own_disk(), own_folder("soup-cell-") as folder:
        place = Path(folder)
        train_here(_in_place(sent, watch.shared, place), watch)
        made = sorted((place / "out").iterdir(), key=lambda path: path.name == sent.cell.run.out.name)
        return {path.name: files_of(path) for path in made}


def files_of(folder: Path) -> Files:
    """A flat directory's files."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def sent(cell: CellHere, read: Callable[[Path], bytes]) -> CellSent:
    """A cell with what it reads of this machine, through `read`, which may know a file of several cells already."""
    run = cell.run
    named = run.spec.adapter.members if isinstance(run.spec.adapter, FusionRequest) else ()
    saved = None if run.checkpoint is None else run.checkpoint / FILE
    return CellSent(
        cell,
        members=tuple({file.name: read(file) for file in sorted(Path(path).iterdir())} for path in named),
        checkpoint=saved.read_bytes() if saved is not None and saved.is_file() else None,
    )


def _in_place(sent: CellSent, texts: TextsSent, place: Path) -> CellHere:
    """The cell with its files in a folder, and its paths there."""
    run = sent.cell.run
    assert run.valid is not None
    read = {"train": run.train, "valid": run.valid}
    for part, data in (("train", texts.train), ("valid", texts.valid)):
        read[part] = place / f"{part}{''.join(read[part].suffixes)}"
        read[part].write_bytes(data)
    members = []
    for number, files in enumerate(sent.members):
        member = place / f"member{number}"
        _write(member, files)
        members.append(member)
    checkpoint = place / "checkpoint"
    if sent.checkpoint is not None:
        _write(checkpoint, {FILE: sent.checkpoint})
    (place / "out").mkdir()
    there = run.model_copy(
        update={
            **read, "called": (str(run.train), str(run.valid)), "members": tuple(members),
            "out": place / "out" / run.out.name, "checkpoint": checkpoint,
        }
    )  # fmt: skip
    return CellHere(sent.cell.entry, sent.cell.fingerprint, sent.cell.threads, there)


def _write(folder: Path, files: Files) -> None:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def base_of(entry: BaseEntry, fingerprint: str) -> LoadedBase:
    """The base model of an entry, loaded once a process.

    Raises MachineProblem, with this machine's name, where it is not there, or has another fingerprint.
    """
    try:
        with named_machine():
            base = _loaded(entry.model_dump_json())
        check_same(entry, base.shape.fingerprint, wanted=fingerprint)
    except (Unavailable, Incompatible) as problem:
        raise MachineProblem(problem) from problem
    return base


@lru_cache(maxsize=1)
def _loaded(entry_json: str) -> LoadedBase:
    return load_base(BaseEntry.model_validate_json(entry_json))
