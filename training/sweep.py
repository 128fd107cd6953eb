"""A grid of trainings from one initialisation: learning rates x seeds of the data's order x domains.

Called by `soup train sweep`; the single-domain soups of AdapterSoup come from one such grid (section 4.3). Each cell
is a directory to push. A finished cell is not trained again and a stopped one resumes from its checkpoint, so that the
same call finishes an interrupted sweep. Cells run one after another, or several at once in a pool; with the same number
of threads the results are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import TypeAdapter, ValidationError

from registry.base_model import BaseText, LoadedBase
from registry.errors import Cancelled, InvalidParameter, NotFound
from registry.formats import AdapterDirectory, place_files, read_directory
from registry.spec.adapter import Domain as DomainName
from registry.spec.wording import describe_error
from registry.tasks.run import run_tasks
from registry.tasks.task import Pool, Task, TaskLost
from training.build import read_items
from training.cell_task import CellTask, Files, members_of, train_elsewhere, train_here
from training.checkpoint import Checkpoint, Saving, differences, discard, locked
from training.data import MIN_TEXTS, MIN_VALID_TEXTS, Data, enough
from training.request import TrainingRun
from training.spec import SAMPLE, TrainingSpec
from training.state import made_with
from training.train import check_bank, inputs_for, train

CHECKPOINTS = ".checkpoints"
"""Folder of the checkpoints beside the adapters, hidden so that `OUT/*` matches adapters only."""
DIVERGED = "learning_rate"
DOMAIN_NAME: TypeAdapter[str] = TypeAdapter(DomainName)


@dataclass(frozen=True)
class Domain:
    """The data of a domain, from `train.jsonl(.gz)` and `valid.jsonl(.gz)` of a folder."""

    name: str
    train: Path
    valid: Path
    data: Data


@dataclass(frozen=True)
class Cell:
    """One training of a grid; `name` is the name of its directory."""

    domain: Domain
    learning_rate: float
    data_seed: int

    @property
    def name(self) -> str:
        """The name of its directory, like `law-lr0.001-seed1`."""
        return f"{self.domain.name}-lr{self.learning_rate:g}-seed{self.data_seed}"


@dataclass(frozen=True)
class Row:
    """The result of a cell: trained in this call, kept from an earlier one, diverged (with `problem`) or failed.

    A cell has failed if its process died; the next call resumes from its checkpoint. `note` describes how the
    environment that decides the last bits of a kept adapter differs from that of this call.
    """

    cell: Cell
    state: Literal["trained", "kept", "diverged", "failed"]
    folder: AdapterDirectory | None = None
    problem: str | None = None
    note: str | None = None

    @property
    def record(self) -> Mapping[str, Any]:
        """The training record of the adapter; empty without one."""
        return {} if self.folder is None else self.folder.provenance.training


@dataclass(frozen=True)
class Grid:
    """The cells of a sweep, the spec that they share, and the folder of their results."""

    cells: Sequence[Cell]
    spec: TrainingSpec
    out: Path
    sample: int = SAMPLE
    base_id: str | None = None

    def run_of(self, cell: Cell) -> TrainingRun:
        """Return the training of a cell; raises InvalidParameter for a number out of range."""
        return TrainingRun(
            spec=self.spec.with_numbers(learning_rate=cell.learning_rate, data_seed=cell.data_seed),
            train=cell.domain.train,
            valid=cell.domain.valid,
            out=self.out / cell.name,
            domain=cell.domain.name,
            base_id=self.base_id,
            sample=self.sample,
            sample_seed=self.spec.init_seed,
            checkpoint=self.out / CHECKPOINTS / cell.name,
        )


CellProgress = Callable[[Cell, int, int, str], None]
"""(cell, step, steps, message): the progress of each training of a grid."""


def silent_cells(_cell: Cell, _step: int, _steps: int, _message: str) -> None:
    """Ignore the progress of a grid."""


def read_domain(folder: Path, spec: TrainingSpec = TrainingSpec()) -> Domain:
    """Read the domain in a folder, named like it, with the items of the spec's task.

    Raises NotFound for a missing file, InvalidParameter for a name that is no valid domain or a file with too few
    items, or as `read_items` does.
    """
    name = folder.resolve().name
    try:
        DOMAIN_NAME.validate_python(name)
    except ValidationError as error:
        raise InvalidParameter(
            f"The name of the folder {folder} is no valid domain: {describe_error(error.errors()[0])}.",
            param="domain",
        ) from None
    train, valid = (_file(folder, split) for split in ("train", "valid"))
    data = Data(read_items(spec, train), read_items(spec, valid))
    # Checked here, before hours of training other domains.
    for path, items, at_least in ((train, data.train, MIN_TEXTS), (valid, data.valid, MIN_VALID_TEXTS)):
        enough(items, at_least, of="items that are not empty", where=str(path))
    return Domain(name, train, valid, data)


def _file(folder: Path, split: str) -> Path:
    for name in (f"{split}.jsonl", f"{split}.jsonl.gz"):
        if (folder / name).is_file():
            return folder / name
    raise NotFound(f"{folder} has no {split}.jsonl and no {split}.jsonl.gz: a domain is a folder with both parts.")


def cells_of(domains: Sequence[Domain], rates: Sequence[float], seeds: Sequence[int]) -> list[Cell]:
    """List the cells of a grid, domain by domain; raises InvalidParameter if two have one name."""
    cells = [Cell(domain, rate, seed) for domain in domains for rate in rates for seed in seeds]
    names = [cell.name for cell in cells]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidParameter(f"{twice[0]} is in the grid twice: give each domain, rate and seed once.", param="grid")
    return cells


def sweep(
    base: BaseText,
    grid: Grid,
    *,
    pool: Pool | None = None,
    progress: CellProgress = silent_cells,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Row]:
    """Train the cells one after another on a LoadedBase, or several at once in a pool, and yield a row for each.

    The others go on if a cell diverges or its process dies too often. In a pool torch's threads are divided among the
    cells. Existing results and checkpoints are checked first: raises Conflict for those of another training. Raises
    Cancelled when `should_stop` returns True, and otherwise what `training.train.train` does.
    """
    with locked_checkpoints(grid):
        existing, threads = existing_results(base, grid), torch.get_num_threads()
        environment = made_with(threads if pool is None else pool.threads(of=threads))
        for cell in grid.cells:
            if cell.name in existing:
                yield finished_row(cell, "kept", existing[cell.name], environment)
        cells = [cell for cell in grid.cells if cell.name not in existing]
        if pool is None:
            errors = _one_by_one(base, grid, cells, progress, should_stop)
        else:
            errors = _in_pool(base, grid, cells, pool, progress, should_stop)
        for cell, error in errors:
            if error is None:
                yield finished_row(cell, "trained", read_directory(grid.out / cell.name), environment)
            else:
                yield failed_row(cell, error)


Errors = Iterator[tuple[Cell, BaseException | None]]
"""Cells as they end, each with its error, if any."""


def _one_by_one(
    base: BaseText, grid: Grid, cells: Sequence[Cell], progress: CellProgress, should_stop: Callable[[], bool]
) -> Errors:
    assert isinstance(base, LoadedBase)
    for cell in cells:
        error: InvalidParameter | None = None
        try:
            report = partial(progress, cell)
            train(grid.run_of(cell), base, data=cell.domain.data, progress=report, should_stop=should_stop)
        except InvalidParameter as problem:
            error = problem
        yield cell, error


def _in_pool(
    base: BaseText,
    grid: Grid,
    cells: Sequence[Cell],
    pool: Pool,
    progress: CellProgress,
    should_stop: Callable[[], bool],
) -> Errors:
    outcomes = run_tasks(
        pool,
        train_elsewhere if pool.remote else train_here,
        _tasks(base, [grid.run_of(cell) for cell in cells], pool),
        progress=lambda index, *report: progress(cells[index], *report),
        should_stop=should_stop,
    )
    try:
        for index, outcome in outcomes:
            if isinstance(outcome, dict):  # directories from another machine
                _write(grid.run_of(cells[index]), outcome)
            yield cells[index], outcome if isinstance(outcome, BaseException) else None
    except Cancelled:
        raise Cancelled(
            "The sweep was cancelled; the cells that were being trained start again."
            if pool.remote
            else "The sweep was cancelled, and the cells that were being trained are saved."
        ) from None


def _tasks(base: BaseText, runs: Sequence[TrainingRun], pool: Pool) -> Iterator[Task]:
    """Yield the cells' tasks, for other machines with their files; each file is read once."""
    read = cache(Path.read_bytes)
    texts = cache(lambda *paths: tuple(map(read, paths)))
    for run in runs:
        cell = CellTask(base.entry, base.shape.fingerprint, pool.threads(of=torch.get_num_threads()), run)
        if pool.remote:
            yield Task(replace(cell, members=members_of(run, read)), texts(run.train, run.valid))
        else:
            yield Task(cell)


def _write(run: TrainingRun, directories: Mapping[str, Files]) -> None:
    """Write the directories from another machine, the merge of a bank last, and discard an old checkpoint."""
    for name, files in sorted(directories.items(), key=lambda item: item[0] == run.out.name):
        place_files(run.out.with_name(name), files, replace=name != run.out.name)  # replaces a bank left by a crash
    assert run.checkpoint is not None
    discard(run.checkpoint)


def failed_row(cell: Cell, error: BaseException) -> Row:
    """The row of a cell that diverged or whose process died; raises any other error, which all cells share."""
    if isinstance(error, TaskLost):
        return Row(cell, "failed", problem=str(error))
    if not isinstance(error, InvalidParameter) or error.param not in ("texts", DIVERGED):
        raise error
    if error.param == "texts":
        raise InvalidParameter(f"{cell.domain.train.parent}: {error.message}", param="texts") from error
    return Row(cell, "diverged", problem=error.message)


def finished_row(
    cell: Cell, state: Literal["trained", "kept"], folder: AdapterDirectory, environment: Mapping[str, Any]
) -> Row:
    """The row of a cell with an adapter; `environment` is the `made_with` of this call."""
    changes: dict[str, None] = {}
    for recorded in _recorded_environments(folder):
        changes |= dict.fromkeys(differences(recorded, dict(environment)))
    note = None
    if changes:
        note = f"Its last bits may differ from those of cells that are trained here: {', '.join(changes)}."
    return Row(cell, state, folder, note=note)


def _recorded_environments(folder: AdapterDirectory) -> list[dict[str, Any]]:
    """The `made_with` entries of an adapter's record; empty if a foreign file has something else there."""
    entries = folder.provenance.training.get("made_with")
    return entries if isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries) else []


@contextmanager
def locked_checkpoints(grid: Grid) -> Iterator[None]:
    """Lock the folder of the checkpoints while open; afterwards it and `out` are removed if they are empty.

    Raises Conflict if another sweep runs in the same folder: the two would train each cell twice.
    """
    conflict = f"Another sweep is at work in {grid.out}: wait for it, or choose another folder."
    try:
        with locked(grid.out / CHECKPOINTS, conflict):
            yield
    finally:
        with suppress(OSError):  # it has checkpoints of unfinished cells, or adapters
            grid.out.rmdir()


def existing_results(base: BaseText, grid: Grid) -> dict[str, AdapterDirectory]:
    """The existing adapters by the names of their cells.

    Raises Conflict if one, or the checkpoint of another cell, is of another training, or if another file has the path
    of a cell's bank.
    """
    runs = [grid.run_of(cell) for cell in grid.cells]  # first of all, to raise for numbers out of range
    results = {}
    for cell, run in zip(grid.cells, runs, strict=True):
        inputs = inputs_for(run, base, cell.domain.data)
        if run.out.exists():
            folder = read_directory(run.out)
            inputs.refuse_another(folder, base, advice="Choose another folder for the sweep, or remove it.")
            results[cell.name] = folder
        else:
            check_bank(run, base, inputs)
            if run.checkpoint is not None and run.checkpoint.exists():
                Checkpoint(Saving(run.checkpoint), inputs.identity(inputs.record(base))).read()
    return results
