"""A grid of trainings from one initialisation: learning rates x seeds of the data's order x domains.

Called by `soup train sweep`; the single-domain soups of AdapterSoup are made of one such grid (section 4.3). Each cell
is a directory to push. One that is there is not trained again, and one that was stopped goes on from its checkpoint,
so that the same call finishes what an earlier one began. Cells run one after another, or several at once in a pool;
with as many threads they come out the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import torch

from registry.base_model import BaseText, LoadedBase
from registry.errors import Cancelled, InvalidParameter, NotFound
from registry.formats import AdapterDirectory, place_files, read_directory
from registry.tasks.run import run_tasks
from registry.tasks.task import Pool, Task, TaskLost
from training.build import read_items
from training.cell_task import CellTask, Files, members_of, train_elsewhere, train_here
from training.checkpoint import differences, discard, held
from training.data import MIN_TEXTS, MIN_VALID_TEXTS, Data, enough
from training.request import TrainingRun
from training.spec import SAMPLE, TrainingSpec
from training.state import made_with
from training.train import check_bank, inputs_for, train

CHECKPOINTS = ".checkpoints"
"""In the folder of the adapters: hidden, so that `OUT/*` names adapters only."""
DIVERGED = "learning_rate"


@dataclass(frozen=True)
class Domain:
    """The data of a domain, from `train.jsonl(.gz)` and `valid.jsonl(.gz)` of a folder."""

    name: str
    train: Path
    valid: Path
    data: Data


@dataclass(frozen=True)
class Cell:
    """One training of a grid; `name` is that of its directory."""

    domain: Domain
    learning_rate: float
    data_seed: int

    @property
    def name(self) -> str:
        """`law-lr0.001-seed1`."""
        return f"{self.domain.name}-lr{self.learning_rate:g}-seed{self.data_seed}"


@dataclass(frozen=True)
class Row:
    """What became of a cell: trained now, there before, or diverged, with the sentence that says where.

    One has failed whose process ended without a word; the same call again goes on from its checkpoint. `note` says
    where what may decide the last bits of an adapter was another than what the cells of this call are trained with.
    """

    cell: Cell
    state: Literal["trained", "kept", "diverged", "failed"]
    folder: AdapterDirectory | None = None
    problem: str | None = None
    note: str | None = None

    @property
    def record(self) -> Mapping[str, Any]:
        """How the adapter was made; empty where there is none."""
        return {} if self.folder is None else self.folder.provenance.training


@dataclass(frozen=True)
class Grid:
    """The cells of a sweep with the spec that they share, and the folder for what they make."""

    cells: Sequence[Cell]
    spec: TrainingSpec
    out: Path
    sample: int = SAMPLE
    base_id: str | None = None

    def run_of(self, cell: Cell) -> TrainingRun:
        """A cell as a training from files to a directory; raises InvalidParameter for a number out of its range."""
        return TrainingRun(
            spec=self.spec.with_numbers(learning_rate=cell.learning_rate, data_seed=cell.data_seed),
            train=cell.domain.train, valid=cell.domain.valid, out=self.out / cell.name, domain=cell.domain.name,
            base_id=self.base_id, sample=self.sample, sample_seed=self.spec.init_seed,
            checkpoint=self.out / CHECKPOINTS / cell.name,
        )  # fmt: skip


CellProgress = Callable[[Cell, int, int, str], None]
"""(cell, step, steps, message): where each training of a grid is."""


def nobody(_cell: Cell, _step: int, _steps: int, _message: str) -> None:
    """The progress of a grid that nobody watches."""


def read_domain(folder: Path, spec: TrainingSpec = TrainingSpec()) -> Domain:
    """The domain of a folder, called by its name, with the items of the spec's task.

    Raises NotFound where a file is missing, InvalidParameter where it holds too little, or as `read_items` does.
    """
    train, valid = (_file(folder, part) for part in ("train", "valid"))
    data = Data(read_items(spec, train), read_items(spec, valid))
    for path, items, least in ((train, data.train, MIN_TEXTS), (valid, data.valid, MIN_VALID_TEXTS)):
        enough(items, least, of="items that are not empty", where=str(path))  # before hours go by with other domains
    return Domain(folder.resolve().name, train, valid, data)


def _file(folder: Path, part: str) -> Path:
    for name in (f"{part}.jsonl", f"{part}.jsonl.gz"):
        if (folder / name).is_file():
            return folder / name
    raise NotFound(f"{folder} has no {part}.jsonl and no {part}.jsonl.gz: a domain is a folder with both parts.")


def cells_of(domains: Sequence[Domain], rates: Sequence[float], seeds: Sequence[int]) -> list[Cell]:
    """The cells of a grid, domain by domain; raises InvalidParameter where two have one name."""
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
    progress: CellProgress = nobody,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Row]:
    """Train the cells one after another on a LoadedBase, or several at once in a pool, and yield a row for each.

    A cell that diverges, or whose process died too often, does not end the others. In a pool the threads of torch are
    shared out. Before the first is trained, those that are there are checked: raises Conflict where one is of another
    training. Raises Cancelled when `should_stop` returns True, and otherwise what `training.train.train` does.
    """
    with at_work(grid):
        kept, threads = kept_cells(base, grid), torch.get_num_threads()
        now = made_with(threads if pool is None else pool.threads(of=threads))
        for cell in grid.cells:
            if cell.name in kept:
                yield made(cell, "kept", kept[cell.name], now)
        cells = [cell for cell in grid.cells if cell.name not in kept]
        errors = (
            _one_by_one(base, grid, cells, progress, should_stop)
            if pool is None
            else _at_once(base, grid, cells, pool, progress, should_stop)
        )
        for cell, error in errors:
            yield (
                made(cell, "trained", read_directory(grid.out / cell.name), now)
                if error is None
                else (untrained(cell, error))
            )


Errors = Iterator[tuple[Cell, BaseException | None]]
"""Cells as they end, each with what it raised."""


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


def _at_once(
    base: BaseText, grid: Grid, cells: Sequence[Cell], pool: Pool, progress: CellProgress,
    should_stop: Callable[[], bool],
) -> Errors:  # fmt: skip
    outcomes = run_tasks(
        pool,
        train_elsewhere if pool.remote else train_here,
        _tasks(base, [grid.run_of(cell) for cell in cells], pool),
        progress=lambda index, *report: progress(cells[index], *report),
        should_stop=should_stop,
    )
    try:
        for index, outcome in outcomes:
            if isinstance(outcome, dict):  # of another machine
                _write(grid.run_of(cells[index]), outcome)
            yield cells[index], outcome if isinstance(outcome, BaseException) else None
    except Cancelled:
        raise Cancelled(
            "The sweep was cancelled; the cells that were being trained begin anew."
            if pool.remote
            else "The sweep was cancelled, and the cells that were being trained are saved."
        ) from None


def _tasks(base: BaseText, runs: Sequence[TrainingRun], pool: Pool) -> Iterator[Task]:
    """The cells' tasks; on other machines with their files, of which each is read once."""
    read = cache(Path.read_bytes)
    texts = cache(lambda *paths: tuple(map(read, paths)))
    for run in runs:
        cell = CellTask(base.entry, base.shape.fingerprint, pool.threads(of=torch.get_num_threads()), run)
        if pool.remote:
            yield Task(replace(cell, members=members_of(run, read)), texts(run.train, run.valid))
        else:
            yield Task(cell)


def _write(run: TrainingRun, directories: Mapping[str, Files]) -> None:
    """Write what another machine trained, the merge of a bank last; a checkpoint from before is not needed any more."""
    for name, files in sorted(directories.items(), key=lambda item: item[0] == run.out.name):
        place_files(run.out.with_name(name), files, replace=name != run.out.name)  # a bank that was left by a crash
    assert run.checkpoint is not None
    discard(run.checkpoint)


def untrained(cell: Cell, error: BaseException) -> Row:
    """The row of a cell that diverged, or whose process died; raises any other error, which all cells have."""
    if isinstance(error, TaskLost):
        return Row(cell, "failed", problem=str(error))
    if not isinstance(error, InvalidParameter) or error.param not in ("texts", DIVERGED):
        raise error
    if error.param == "texts":
        raise InvalidParameter(f"{cell.domain.train.parent}: {error.message}", param="texts") from error
    return Row(cell, "diverged", problem=error.message)


def made(cell: Cell, state: Literal["trained", "kept"], folder: AdapterDirectory, now: Mapping[str, Any]) -> Row:
    """The row of a cell whose adapter is there; `now` is what cells are `made_with` in this call."""
    parts = [differences(one, dict(now)) for one in _recorded(folder)]
    found = list(dict.fromkeys(difference for part in parts for difference in part))
    note = f"Its last bits may differ from those of cells that are trained here: {', '.join(found)}." if found else None
    return Row(cell, state, folder, note=note)


def _recorded(folder: AdapterDirectory) -> list[dict[str, Any]]:
    """The `made_with` of each part of an adapter's training; none where a file from elsewhere says something else."""
    found = folder.provenance.training.get("made_with")
    return found if isinstance(found, list) and all(isinstance(one, dict) for one in found) else []


@contextmanager
def at_work(grid: Grid) -> Iterator[None]:
    """Own the folder of the checkpoints while open; removed afterwards, where none is left in it.

    Raises Conflict where another sweep is at work in the same place: the two would train every cell twice.
    """
    folder = grid.out / CHECKPOINTS
    with held(folder, f"Another sweep is at work in {grid.out}: wait for it, or choose another folder."):
        try:
            yield
        finally:
            for emptied in (folder, grid.out):
                with suppress(OSError):  # checkpoints of cells that diverged or were stopped; adapters
                    emptied.rmdir()


def kept_cells(base: BaseText, grid: Grid) -> dict[str, AdapterDirectory]:
    """The adapters that are there, by the names of their cells.

    Raises Conflict where one is of another training, or something else is where a cell's bank is to be.
    """
    runs = [grid.run_of(cell) for cell in grid.cells]  # a number out of its range, before anything else
    found = {cell.name: _kept(base, run, cell.domain.data) for cell, run in zip(grid.cells, runs, strict=True)}
    return {name: folder for name, folder in found.items() if folder is not None}


def _kept(base: BaseText, run: TrainingRun, data: Data) -> AdapterDirectory | None:
    inputs = inputs_for(run, base, data)
    if not run.out.exists():
        check_bank(run, base, inputs)
        return None
    folder = read_directory(run.out)
    inputs.refuse_another(folder, base, advice="Choose another folder for the sweep, or remove it.")
    return folder
