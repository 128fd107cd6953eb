"""Several cells of a grid at once, each in a process with a base model of its own.

Called by `soup train sweep --parallel`. The cells come out as they would one after another with as many threads; which
process had which makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from registry.base_model import BaseText
from registry.errors import Cancelled, InvalidParameter, Unavailable, rebuild
from registry.formats import read_directory
from training.process import Child, Json, wait_for
from training.sweep import Cell, CellProgress, Plan, Row, at_work, diverged, kept_cells
from training.worker import Bench, Task

TICK_SECONDS = 0.25
GRACE_SECONDS = 120.0
"""How long a process may take to save the training that it is stopped in."""


def sweep_in_processes(
    base: BaseText,
    cells: Sequence[Cell],
    plan: Plan,
    *,
    processes: int,
    progress: CellProgress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[Row]:
    """Train the cells, so many at once, and give what became of each as it is done; otherwise as `sweep` does.

    The threads of torch are shared out. A process that ends without a word leaves its cell as failed, and does not end
    the others; another takes the place of one that ended while it had no cell. One that cannot be started raises
    Unavailable.
    """
    with at_work(plan):
        kept = kept_cells(base, cells, plan)
        for cell in cells:
            if cell.name in kept:
                yield Row(cell, "kept", kept[cell.name])
        waiting = [cell for cell in cells if cell.name not in kept]
        hands = _Hands(Bench(entry=base.entry, threads=max(1, torch.get_num_threads() // processes)), plan, progress)
        try:
            while waiting or hands.busy:
                while waiting and len(hands.busy) < processes:
                    hands.give(waiting.pop(0))
                if should_stop is not None and should_stop():
                    raise Cancelled("The sweep was cancelled, and the cells that were being trained are saved.")
                yield from hands.done()
        finally:
            hands.end()


class _Hands:
    """The processes that are at a cell, and those that wait for one with their base model loaded."""

    def __init__(self, bench: Bench, plan: Plan, progress: CellProgress | None) -> None:
        self._bench = bench.model_dump(mode="json")
        self._plan, self._progress = plan, progress
        self.busy: dict[Child, Cell] = {}
        self._idle: list[Child] = []

    def give(self, cell: Cell) -> None:
        """Have a cell trained; raises Unavailable where no process for it can be started."""
        task = Task(work=self._plan.work_of(cell)).model_dump(mode="json")
        child = self._waiting(task) or self._started(task)
        self.busy[child] = cell

    def _waiting(self, task: Json) -> Child | None:
        """A process that waited, told its task; None where none does. Those that ended meanwhile are cleared away."""
        while self._idle:
            child = self._idle.pop()
            try:
                child.tell(task)
            except OSError:
                child.end()
            else:
                return child
        return None

    def _started(self, task: Json) -> Child:
        try:
            return Child("training.worker", self._bench, task)
        except OSError as error:
            raise Unavailable(f"A process to train in could not be started: {error.strerror or error}.") from error

    def done(self) -> Iterator[Row]:
        """The cells that come to an end within a moment."""
        for child in wait_for(list(self.busy), TICK_SECONDS):
            cell = self.busy[child]
            try:
                answers = child.answers(0)
            except EOFError as ended:
                del self.busy[child]
                child.end()
                yield Row(cell, "failed", problem=f"Its process ended with status {ended.args[0]}.")
                continue
            for answer in answers:
                if "progress" in answer:
                    self._report(cell, answer)
                else:
                    del self.busy[child]
                    self._idle.append(child)
                    yield self._row(cell, answer)

    def _report(self, cell: Cell, answer: Json) -> None:
        if self._progress is not None:
            self._progress(cell, *answer["progress"])

    def _row(self, cell: Cell, answer: Json) -> Row:
        """What became of a cell; raises what is wrong with all of them."""
        if "error" not in answer:
            return Row(cell, "trained", read_directory(self._plan.out / cell.name))
        error = answer["error"]
        problem = rebuild(error["code"], error["message"], param=error["param"], problems=error["problems"])
        if isinstance(problem, InvalidParameter):
            return diverged(cell, problem)
        raise problem

    def end(self) -> None:
        """End all processes; those that are training save what they have."""
        for child in self.busy:
            child.ask_to_end()
        for child in [*self.busy, *self._idle]:
            child.end(grace=GRACE_SECONDS)
