"""Several cells of a grid at once, each in a process with a base model of its own.

Called by `soup train sweep --parallel`. The cells come out as they would one after another with as many threads; which
process had which makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from registry.base_model import BaseText
from registry.errors import Cancelled, InvalidParameter, Unavailable
from registry.formats import read_directory
from training.process import TICK_SECONDS, Child, wait_for
from training.sweep import Cell, CellProgress, Grid, Row, at_work, diverged, kept_cells, nobody
from training.worker import WorkerRequest, WorkerSetup

GRACE_SECONDS = 120.0
"""How long a process may take to save the training that it is stopped in."""


def sweep_in_processes(
    base: BaseText,
    grid: Grid,
    *,
    processes: int,
    progress: CellProgress = nobody,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[Row]:
    """Train the cells, so many at once, and give what became of each as it is done; otherwise as `sweep` does.

    The threads of torch are shared out. A process that ends without a word leaves its cell as failed, and does not end
    the others; another takes its place. One that cannot be started raises Unavailable.
    """
    with at_work(grid):
        kept = kept_cells(base, grid)
        for cell in grid.cells:
            if cell.name in kept:
                yield Row(cell, "kept", kept[cell.name])
        waiting = [cell for cell in grid.cells if cell.name not in kept]
        setup = WorkerSetup(entry=base.entry, threads=max(1, torch.get_num_threads() // processes))
        workers = Workers(setup, grid, processes=processes, progress=progress)
        try:
            while waiting or workers.busy:
                while waiting and workers.idle:
                    workers.give(waiting.pop(0))
                if should_stop is not None and should_stop():
                    raise Cancelled("The sweep was cancelled, and the cells that were being trained are saved.")
                yield from workers.done()
        finally:
            workers.end()


class Workers:
    """The processes that are at a cell, and those that wait for one, with their base model loaded after the first."""

    def __init__(self, setup: WorkerSetup, grid: Grid, *, processes: int, progress: CellProgress = nobody) -> None:
        first = setup.model_dump(mode="json")
        self.idle = [Child("training.worker", first, grace=GRACE_SECONDS) for _ in range(processes)]
        self.busy: dict[Child, Cell] = {}
        self._grid, self._progress = grid, progress

    def give(self, cell: Cell) -> None:
        """Have a cell trained by one that is idle; raises Unavailable where no process for it can be started."""
        request = WorkerRequest(run=self._grid.run_of(cell)).model_dump(mode="json")
        try:
            self.idle[-1].tell(request, waiting=(0, 0, "waiting for the training to start"))
        except OSError as error:
            raise Unavailable(f"A process to train in could not be started: {error.strerror or error}.") from error
        self.busy[self.idle.pop()] = cell

    def done(self) -> Iterator[Row]:
        """The cells that come to an end within a moment; raises what is wrong with all of them."""
        for child in wait_for(list(self.busy), TICK_SECONDS):
            cell = self.busy[child]
            try:
                answer = child.hear(0, partial(self._progress, cell))
            except EOFError as ended:
                child.end()
                row = Row(cell, "failed", problem=f"Its process ended with status {ended.args[0]}.")
            except InvalidParameter as problem:
                row = diverged(cell, problem)
            else:
                if answer is None:
                    continue
                row = Row(cell, "trained", read_directory(self._grid.out / cell.name))
            del self.busy[child]
            self.idle.append(child)
            yield row

    def end(self) -> None:
        """End all processes; those that are training save what they have."""
        for child in self.busy:
            child.ask_to_end()
        for child in (*self.busy, *self.idle):
            child.end()
