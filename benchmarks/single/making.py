"""The trainings of the single-domain experiment: the grid, and the pairs of the mixing curves.

`soup train sweep` trains them in the experiment's folder, and resumes after an interruption.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.single.scoring import Ingredient, ingredient
from benchmarks.single.setting import INIT_SEED, INITS, ORDERS, OTHER_SEED, RATES, Init, Setting, Texts
from demo.server import SOUP

BOTTLENECK = 64
Say = Callable[[str], object]


@dataclass(frozen=True)
class Grid:
    """One sweep: the cells of learning rates x data orders from one initialisation."""

    init: Init
    init_seed: int
    rates: tuple[float, ...]
    orders: tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """Two adapters on whose line a mixing curve lies."""

    init: Init
    same_seed: bool
    one: Ingredient
    other: Ingredient

    @property
    def name(self) -> str:
        """`near_identity, same seed`."""
        return f"{self.init}, {'same' if self.same_seed else 'other'} seed"


MAIN = Grid("near_identity", INIT_SEED, RATES, ORDERS)


def curve_grids(rate: float) -> Iterator[Grid]:
    """Further adapters for the curves: for each init two orders of one seed, and the second order of another seed."""
    for init in INITS:
        if init != MAIN.init:
            yield Grid(init, INIT_SEED, (rate,), ORDERS[:2])
        yield Grid(init, OTHER_SEED, (rate,), ORDERS[1:2])


def train_grids(setting: Setting, *, processes: int, say: Say, on: str | None = None) -> None:
    """Train every cell that is not there, in processes or with `on` on Ray; CalledProcessError where a sweep fails."""
    folder = setting.home / "text" / setting.sizes.domain
    for part, texts in (("train", setting.train), ("valid", setting.stopping)):
        _write(folder / f"{part}.jsonl", texts)
    for grid in (MAIN, *curve_grids(setting.sizes.curve_rate)):
        arguments = sweep_arguments(setting, grid, folder, processes=processes, on=on)
        say(f"$ soup {' '.join(arguments)}")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command = [*SOUP, *arguments]
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)


def sweep_arguments(setting: Setting, grid: Grid, folder: Path, *, processes: int, on: str | None = None) -> list[str]:
    """The arguments of `soup` to train a grid."""
    sizes = setting.sizes
    said: Mapping[str, object] = {
        "--base-folder": setting.base.source, "--out": _out(setting, grid), "--init": grid.init,
        "--init-seed": grid.init_seed, "--lr": ",".join(f"{rate:g}" for rate in grid.rates),
        "--seed": ",".join(map(str, grid.orders)), "--bottleneck": BOTTLENECK, "--steps": sizes.steps,
        "--batch": sizes.batch, "--block": sizes.block, "--evaluations": sizes.evaluations, "--dtype": setting.dtype,
        "--sample": 0, **({"--parallel": processes} if on is None else {"--on": on}),
    }  # fmt: skip
    return ["train", "sweep", str(folder), *(str(word) for pair in said.items() for word in pair)]


def _out(setting: Setting, grid: Grid) -> Path:
    return setting.home / "adapters" / f"{grid.init}-{grid.init_seed}"


def cell(setting: Setting, grid: Grid, rate: float, order: int) -> Ingredient:
    """A trained adapter; raises NotFound where it diverged, which the sweep has said."""
    folder = _out(setting, grid) / f"{setting.sizes.domain}-lr{rate:g}-seed{order}"
    return ingredient(f"{grid.init}-{grid.init_seed}/{folder.name}", folder)


def pairs(setting: Setting) -> list[Pair]:
    """For each initialisation: one adapter with another order of the data, and with another seed besides."""
    rate = setting.sizes.curve_rate
    found = []
    for init in INITS:
        here, there = (Grid(init, seed, (rate,), ORDERS) for seed in (INIT_SEED, OTHER_SEED))
        one, same, other = (cell(setting, here, rate, 1), cell(setting, here, rate, 2), cell(setting, there, rate, 2))
        found += [Pair(init, True, one, same), Pair(init, False, one, other)]
    return found


def _write(path: Path, texts: Texts) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts.passages), encoding="utf-8")
