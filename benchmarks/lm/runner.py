"""Runs cells, some at once, each in a process with one thread, and keeps every result as a file of its own.

Called by `lm_adapters`. A result is `cells/<digest of the cell>.json`; what is there is not run again, so that a run
that was stopped goes on with the next call. What a change of the code changes, no digest sees: `cells.VERSION` does,
and every file says which commit made it.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.lm.cells import Cell, Data
from benchmarks.lm.plan import Size
from benchmarks.lm.work import Texts, data_of, run_cell, texts_of
from demo.results import commit
from registry.base_model import LoadedBase, load_base
from registry.files import replace_file
from registry.spec import BaseEntry

Record = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a run finds what it needs, and keeps what it makes."""

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
    """What cells say of the texts of every domain, whole and a tenth."""
    return {
        (domain, tenth): data_of(domain, texts_of(place.corpora, domain, place.size, tenth=tenth), tenth=tenth)
        for domain in (*place.size.domains, *place.size.others)
        for tenth in (False, True)
    }


def kept(place: Place, cells: Iterable[Cell]) -> dict[str, dict[str, Any]]:
    """What files there are, by the cells' keys; a result that lacks the adapter it was to keep does not count."""
    found = {}
    for cell in cells:
        path = place.file(cell)
        if path.is_file() and (not cell.keeps or path.with_suffix(".safetensors").is_file()):
            found[cell.key] = json.loads(path.read_text(encoding="utf-8"))
    return found


class Runner:
    """Runs cells in processes that are there from the first cell to be run until it is closed."""

    def __init__(self, place: Place, *, parallel: int) -> None:
        self._place, self._parallel = place, parallel
        self._pool: ProcessPoolExecutor | None = None
        self.kept: dict[str, str | None] = {}
        """The commits that made the cells that earlier runs left, by their keys."""

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, cells: Sequence[Cell], *, what: str) -> dict[str, Record]:
        """The results of all cells by their keys, those that are not there yet run now, the longest first.

        Raises what the first cell that fails raises; those that run beside it are kept.
        """
        files = kept(self._place, cells)
        self.kept |= {key: value.get("commit") for key, value in files.items()}
        found: dict[str, Record] = {key: value["result"] for key, value in files.items()}
        todo = sorted((cell for cell in cells if cell.key not in found), key=lambda one: -one.training_tokens)
        tell = Progress(what, len(cells), found=len(found), left=sum(map(_tokens, todo)))
        running = {self._submit(cell): cell for cell in todo}
        for cell, record in _as_they_end(running):
            found[cell.key] = record
            tell.done(cell, _tokens(cell), record)
        return found

    def _submit(self, cell: Cell) -> Future[Record]:
        if self._pool is None:
            self._place.cells.mkdir(parents=True, exist_ok=True)
            started = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads, and hang
            self._pool = ProcessPoolExecutor(
                self._parallel, mp_context=started, initializer=_begin, initargs=(self._place, commit())
            )
        return self._pool.submit(_run, cell)


def _as_they_end(running: Mapping[Future[Record], Cell]) -> Iterable[tuple[Cell, Record]]:
    left = set(running)
    while left:
        ended, left = wait(left, return_when=FIRST_COMPLETED)
        for future in ended:
            yield running[future], future.result()


def _tokens(cell: Cell) -> int:
    return cell.training_tokens + 1  # so that scoring alone is progress too


class Progress:
    """A line on stderr for each cell that is done, with what is left at the speed so far."""

    def __init__(self, what: str, cells: int, *, found: int, left: int) -> None:
        self._what, self._cells, self._done = what, cells, found
        self._left, self._spent, self._start = left, 0, time.monotonic()
        if found:
            print(f"{what}: {found} of {cells} cells are there", file=sys.stderr)

    def done(self, cell: Cell, tokens: int, record: Record) -> None:
        """Tell of one more cell that is done."""
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


# --- in a process of its own ------------------------------------------------------------------------

_PLACE: list[Place] = []
_COMMIT: list[str | None] = []


def _begin(place: Place, made_by: str | None) -> None:
    """One thread, whatever runs beside: the order of sums, and with it the last bits, depends on their number."""
    import torch

    torch.set_num_threads(1)
    _PLACE.append(place)
    _COMMIT.append(made_by)


@cache
def _base() -> LoadedBase:
    return load_base(entry(_PLACE[0]))


@cache
def _texts(domain: str, tenth: bool) -> Texts:
    return texts_of(_PLACE[0].corpora, domain, _PLACE[0].size, tenth=tenth)


def _run(cell: Cell) -> Record:
    place, began = _PLACE[0], time.monotonic()
    texts = _texts(cell.data.domain, cell.data.tenth)
    record: Record = rounded_deep(run_cell(cell, _base(), texts, place.cells))
    value = {
        "cell": cell.model_dump(mode="json"), "result": record, "seconds": round(time.monotonic() - began, 2),
        "commit": _COMMIT[0],
    }  # fmt: skip
    path = place.file(cell)
    data = json.dumps(value, allow_nan=False).encode()
    replace_file(path, data, beside=path.with_suffix(".new"))
    return record


def rounded_deep(value: Any) -> Any:
    """JSON with its floats at nine digits: what is read again is what was computed with."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: rounded_deep(one) for name, one in value.items()}
    return [rounded_deep(one) for one in value] if isinstance(value, list | tuple) else value
