"""The ladder of `benchmarks.adaptersoup`: uses of a sample without any adapter of the bank.

Each is a task in a process of its own, in the server's dtype and at the priority of its process for gradients. Results
are files named by the base and all passages, so that banks on one base share them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.soups.cells import Cell
from benchmarks.soups.setting import Setting
from benchmarks.soups.trained import Passages, Rung, full, lora, nll_of, rungs
from benchmarks.soups.untrained import nearest_neighbours, prompted
from demo.scores import computed_once
from registry import cores
from registry.base_model import LoadedBase, load_base
from registry.names import digest_of
from registry.spec import BaseEntry
from registry.tasks.run import run_tasks
from registry.tasks.task import Pool, Task, Watch
from training.process import NICENESS, lower_priority


@dataclass(frozen=True)
class Rates:
    """Learning rates to choose from, in rising order, of PEFT's LoRAs and of full fine-tuning."""

    peft: Sequence[float] = (3e-4, 1e-3, 3e-3)
    full: Sequence[float] = (1e-5, 3e-5, 1e-4)


@dataclass(frozen=True)
class Climbed:
    """The uses of a sample by one way, and the seconds of one pass of the base over the sample just before."""

    forward: float
    rungs: tuple[Rung, ...]

    def best(self, *, within: float = float("inf")) -> Rung:
        """The best on held-out passages of those made within a number of passes of the base over the sample."""
        affordable = [rung for rung in self.rungs if rung.seconds <= within * self.forward]
        return min(affordable, key=lambda rung: rung.held_out)


class Ladder:
    """Every result so far, a file each in a folder; others are computed in `pool`."""

    def __init__(self, folder: Path, pool: Pool, rates: Rates) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._pool, self._rates = folder, pool, rates

    def get(self, setting: Setting, cell: Cell) -> Climbed:
        """The result of a cell, computed if it is not stored; raises what the task raises."""
        task = self._task(setting, cell)

        def compute() -> dict[str, Any]:
            [(_, result)] = run_tasks(self._pool, climb, [Task(task)])
            if isinstance(result, BaseException):
                raise result
            return asdict(result)

        value = computed_once(self._path(cell, task), compute)
        rungs = (Rung(**{**rung, "nll": tuple(rung["nll"])}) for rung in value["rungs"])
        return Climbed(value["forward"], tuple(rungs))

    def _task(self, setting: Setting, cell: Cell) -> ToClimb:
        passages = Passages(
            tuple(setting.sample(cell.domain, size=cell.size, seed=cell.draw)),
            tuple(setting.held_out(cell.domain, seed=cell.draw)),
            tuple(setting.test(cell.domain)),
        )
        rates = {"peft": self._rates.peft, "full": self._rates.full}.get(cell.way, ())
        threads = self._pool.threads(of=cores.ALL)
        return ToClimb(setting.job.base, setting.base_digest, cell.way, tuple(rates), passages, threads)

    def _path(self, cell: Cell, task: ToClimb) -> Path:
        key = digest_of([task.fingerprint, task.entry.dtype, task.way, *task.rates, asdict(task.passages)])
        return self._folder / f"{cell.domain}-{cell.way}-{cell.size}-{key[7:19]}.json"


# --- in a process of its own -------------------------------------------------------------------------


@dataclass(frozen=True)
class ToClimb:
    """A way, with the rates to choose from, on a base model and passages."""

    entry: BaseEntry
    fingerprint: str
    way: str
    rates: tuple[float, ...]
    passages: Passages
    threads: int


Way = Callable[[LoadedBase, Passages, Sequence[float]], list[Rung]]
_WAYS: Mapping[str, Way] = {
    "prompt": lambda base, passages, _: prompted(base, passages),
    "knn_lm": lambda base, passages, _: nearest_neighbours(base, passages),
    "peft": partial(rungs, lora),
    "full": partial(rungs, full),
}


def climb(task: ToClimb, _watch: Watch) -> Climbed:
    """The uses of the sample by a way."""
    torch.set_num_threads(task.threads)
    base = _base(task.entry)
    began = time.perf_counter()
    nll_of(base, task.passages.sample)
    forward = time.perf_counter() - began
    torch.manual_seed(0)
    return Climbed(forward, tuple(_WAYS[task.way](base, task.passages, task.rates)))


@lru_cache(maxsize=1)
def _base(entry: BaseEntry) -> LoadedBase:
    lower_priority(NICENESS)
    return load_base(entry)
