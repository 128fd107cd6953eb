"""Runs cells in parallel, each on one thread of a process here or on Ray, and stores each result in a file.

Called by `lm_adapters`. A result is `cells/<digest of the cell>.json`. Stored results are not computed again, so an
interrupted run continues with the next call. Digests do not cover the code: `cells.VERSION` does, and each file records
its commit.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.lm.cells import Cell, Data
from benchmarks.lm.plan import Size
from benchmarks.lm.work import Texts, adapter_file, data_of, run_cell, texts_of
from demo.results import commit
from registry.base_model import shape_of
from registry.files import replace_file
from registry.spec import BaseEntry
from registry.tasks.run import run_tasks
from registry.tasks.task import Pool, Task, Watch
from training.cell_task import base_of

Record = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """The folders of a run's inputs and outputs."""

    base: Path
    corpora: Path
    """With a folder for each domain."""
    folder: Path
    size: Size

    @property
    def cells(self) -> Path:
        """The folder of the results."""
        return self.folder / "cells"

    def file(self, cell: Cell) -> Path:
        """The result of a cell."""
        return self.cells / f"{cell.key.removeprefix('sha256:')}.json"


def entry(place: Place) -> BaseEntry:
    """The base model as an entry of the allowlist, in fp32."""
    return BaseEntry(id="base", source=str(place.base.resolve()))


def all_data(place: Place) -> dict[tuple[str, bool], Data]:
    """The data of every domain, all of it and a tenth, as cells describe it."""
    return {
        (domain, tenth): data_of(domain, texts_of(place.corpora, domain, place.size, tenth=tenth), tenth=tenth)
        for domain in (*place.size.domains, *place.size.others)
        for tenth in (False, True)
    }


def kept(place: Place, cells: Iterable[Cell]) -> dict[str, dict[str, Any]]:
    """The stored results, by the cells' keys, without results whose stored adapter is missing."""
    found = {}
    for cell in cells:
        path = place.file(cell)
        if path.is_file() and (not cell.keeps or path.with_suffix(".safetensors").is_file()):
            found[cell.key] = json.loads(path.read_text(encoding="utf-8"))
    return found


class Runner:
    """Runs cells in a pool."""

    def __init__(self, place: Place, pool: Pool) -> None:
        self._place, self._pool = place, pool
        self._texts = cache(self._read_texts)
        self._fingerprint = cache(lambda: shape_of(entry(place)).fingerprint)  # of all its weights

    def run(self, cells: Sequence[Cell], *, what: str) -> dict[str, Record]:
        """The results of all cells by their keys; runs the missing ones, the longest first.

        Raises the error of the first cell that fails, after cells that run at that time have ended and are stored.
        """
        files = kept(self._place, cells)
        found: dict[str, Record] = {key: value["result"] for key, value in files.items()}
        todo = [cell for cell in sorted(cells, key=lambda one: -one.training_tokens) if cell.key not in found]
        tell = Progress(what, len(cells), found=len(found), left=sum(map(_tokens, todo)))
        failed: BaseException | None = None
        tasks = (self._task(cell) for cell in takewhile(lambda _: failed is None, todo))
        for index, outcome in run_tasks(self._pool, _run, tasks):
            if isinstance(outcome, BaseException):
                failed = failed or outcome
                continue
            cell = todo[index]
            found[cell.key] = self._keep(cell, outcome)
            tell.done(cell, _tokens(cell), found[cell.key])
        if failed is not None:
            raise failed
        return found

    def _task(self, cell: Cell) -> Task:
        """A cell with all its inputs except the base model, which must have its fingerprint."""
        base = entry(self._place)
        members = {name: (self._place.cells / name).read_bytes() for name in map(adapter_file, cell.members)}
        texts = self._texts(cell.data.domain, cell.data.tenth)
        return Task(ToRun(cell, base, self._fingerprint(), members), texts)

    def _read_texts(self, domain: str, tenth: bool) -> Texts:
        return texts_of(self._place.corpora, domain, self._place.size, tenth=tenth)

    def _keep(self, cell: Cell, ran: Ran) -> Record:
        """Write the result of a cell, its adapter first: a result without it does not count."""
        self._place.cells.mkdir(parents=True, exist_ok=True)
        value = {
            "cell": cell.model_dump(mode="json"), "result": ran.record, "seconds": round(ran.seconds, 2),
            "commit": commit(),
        }  # fmt: skip
        files = {**ran.adapter, self._place.file(cell).name: json.dumps(value, allow_nan=False).encode()}
        for name, data in files.items():
            path = self._place.cells / name
            replace_file(path, data, temporary=path.with_suffix(".new"))
        return ran.record


def _tokens(cell: Cell) -> int:
    return cell.training_tokens + 1  # so that scoring alone is progress too


class Progress:
    """A line on stderr for each cell that is done, with the estimated remaining time."""

    def __init__(self, what: str, cells: int, *, found: int, left: int) -> None:
        self._what, self._cells, self._done = what, cells, found
        self._left, self._spent, self._start = left, 0, time.monotonic()
        if found:
            print(f"{what}: {found} of {cells} cells are there", file=sys.stderr)

    def done(self, cell: Cell, tokens: int, record: Record) -> None:
        """Print a line for one more cell that is done."""
        self._done += 1
        self._spent, self._left = self._spent + tokens, self._left - tokens
        seconds = (time.monotonic() - self._start) * self._left / self._spent
        history = record.get("history") or [[0, float("nan")]]
        said = "diverged" if "diverged" in record else f"validation {history[0][1]:.3f} -> {history[-1][1]:.3f}"
        print(
            f"{self._what}: {self._done}/{self._cells}, {seconds / 60:.0f} min left; {cell.variant} "
            f"{cell.data.domain} seed {cell.seed}: {said}",
            file=sys.stderr,
        )


# --- in a process of its own, here or on another machine ---------------------------------------------


@dataclass(frozen=True)
class ToRun:
    """A cell, and what it is run on beside the texts, which cells of one domain share.

    `members` are files of adapters by their names.
    """

    cell: Cell
    base: BaseEntry
    fingerprint: str
    members: Mapping[str, bytes]


@dataclass(frozen=True)
class Ran:
    """The result of a cell, with the file of its adapter if that is stored."""

    record: Record
    seconds: float
    adapter: Mapping[str, bytes]


def _run(given: ToRun, watch: Watch) -> Ran:
    """Limit this process to one thread: the order of sums, and so the last bits, depends on the number of threads."""
    torch.set_num_threads(1)
    base, began = base_of(given.base, given.fingerprint), time.monotonic()
    with TemporaryDirectory(prefix="soup-cell-") as name:
        folder = Path(name)
        for file, data in given.members.items():
            (folder / file).write_bytes(data)
        record: Record = rounded_deep(run_cell(given.cell, base, watch.shared, folder))
        made = {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in given.members}
    return Ran(record, time.monotonic() - began, made)


def rounded_deep(value: Any) -> Any:
    """JSON with its floats at nine digits: what is read again is what was computed with."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: rounded_deep(one) for name, one in value.items()}
    return [rounded_deep(one) for one in value] if isinstance(value, list | tuple) else value
