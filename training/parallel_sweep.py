"""Several cells of a grid at once, each a piece of work with a base model of its own: here, or on a cluster.

Called by `soup train sweep --parallel` and `--on`. The cells come out as they would one after another with as many
threads; which process or machine had which makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from registry.base_model import BaseText
from registry.errors import Cancelled, InvalidParameter
from registry.formats import read_directory
from registry.formats.atomic_directory import place_files
from registry.pieces import Ended, Piece, Workplace
from training.cell_pieces import CellHere, Files, TextsSent, sent, train_here, train_sent
from training.checkpoint import discard
from training.state import made_with
from training.sweep import Cell, CellProgress, Grid, Row, at_work, diverged, kept_cells, made, nobody


def sweep_at(
    place: Workplace,
    base: BaseText,
    grid: Grid,
    *,
    progress: CellProgress = nobody,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[Row]:
    """Train the cells at a place, and give what became of each; otherwise as `sweep` does.

    The threads of torch are shared out, or as many as a cell has cores elsewhere. A cell whose process was lost more
    often than the place tries it again has failed, and does not end the others.
    Raises Unavailable where nothing can be run there.
    """
    with at_work(grid):
        kept, threads = kept_cells(base, grid), place.threads(of=torch.get_num_threads())
        now = made_with(threads)
        for cell in grid.cells:
            if cell.name in kept:
                yield made(cell, "kept", kept[cell.name], now)
        cells = {cell.name: cell for cell in grid.cells if cell.name not in kept}

        def report(name: str, done: int, total: int, message: str) -> None:
            progress(cells[name], done, total, message)

        about = (base.entry, base.shape.fingerprint, threads)
        pieces = _pieces([CellHere(*about, grid.run_of(cell)) for cell in cells.values()], place.shares_files)
        try:
            for ended in place.run(pieces, progress=report, should_stop=should_stop):
                yield _row(grid, cells[ended.name], ended, now)
        except Cancelled:
            raise Cancelled(
                "The sweep was cancelled, and the cells that were being trained are saved."
                if place.shares_files
                else "The sweep was cancelled; the cells that were being trained begin anew."
            ) from None


def _pieces(cells: list[CellHere], share_files: bool) -> Iterator[Piece[Any]]:
    """The trainings of cells, with their files where the place does not share those of this machine.

    A cell's files are read when it is about to be trained, and those that several cells have once; texts are shared.
    """
    if share_files:
        yield from (Piece(cell.run.out.name, train_here, cell) for cell in cells)
        return
    read = cache(Path.read_bytes)
    texts = cache(lambda train, valid: TextsSent(read(train), read(valid)))
    for cell in cells:
        yield Piece(cell.run.out.name, train_sent, sent(cell, read), texts(cell.run.train, cell.run.valid))


def _row(grid: Grid, cell: Cell, ended: Ended[dict[str, Files] | None], now: Mapping[str, Any]) -> Row:
    """What became of a cell; directories that were sent are written. Raises what is wrong with all of them."""
    if ended.gave_up:
        return Row(cell, "failed", problem=str(ended.problem))
    try:
        files = ended.value()
    except InvalidParameter as problem:
        return diverged(cell, problem)
    for name, sent_back in (files or {}).items():
        place_files(grid.out / name, sent_back, replace=name != cell.name)  # a bank of this very cell, after a crash
    checkpoint = grid.run_of(cell).checkpoint
    if files is not None and checkpoint is not None:
        discard(checkpoint)
    return made(cell, "trained", read_directory(grid.out / cell.name), now)
