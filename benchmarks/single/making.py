"""The trainings of the single-domain experiment: the grid, the pairs of the mixing curves, and adapters made again.

Grid and pairs are trained by `soup train sweep`, three adapters of the shared collection by their recorded recipes. All
of it is kept in the experiment's folder and goes on where it was stopped.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.single.ledger import Ledger
from benchmarks.single.scoring import Ingredient, ingredient
from benchmarks.single.setting import INIT_SEED, INITS, ORDERS, OTHER_SEED, RATES, Init, Setting, Texts
from demo.convert import convert, initial_tensors
from demo.job import Job
from registry.base_model import load_base, shape_of
from registry.errors import Internal
from registry.formats import read_directory
from registry.spec import BaseEntry, BottleneckConfig
from training.checkpoint import Saving, discard
from training.data import Data
from training.hyperparameters import Hyperparameters
from training.inputs import TrainingInputs
from training.trainer import train_adapter

REPRODUCED = ("king_james_bible", "biomed_papers", "linux_man_pages")
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
    """What the curves need beside the main grid: for each init two orders of one seed, and the second of another."""
    for init in INITS:
        if init != MAIN.init:
            yield Grid(init, INIT_SEED, (rate,), ORDERS[:2])
        yield Grid(init, OTHER_SEED, (rate,), ORDERS[1:2])


def train_grids(setting: Setting, *, processes: int, say: Say, ledger: Ledger, on: str | None = None) -> None:
    """Train every cell that is not there, in processes or with `on` on Ray; CalledProcessError where a sweep fails.

    `ledger` hears of every cell that was made, also of those before a failure.
    """
    folder = setting.home / "text" / setting.sizes.domain
    for part, texts in (("train", setting.train), ("valid", setting.stopping)):
        _write(folder / f"{part}.jsonl", texts)
    for grid in (MAIN, *curve_grids(setting.sizes.curve_rate)):
        arguments = sweep_arguments(setting, grid, folder, processes=processes, on=on)
        say(f"$ soup {' '.join(arguments)}")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with told(ledger, lambda grid=grid: _made(setting, grid)):  # type: ignore[misc]
            subprocess.run(
                [sys.executable, "-m", "service.cli", *arguments], env=environment, stdout=subprocess.DEVNULL,
                check=True,
            )  # fmt: skip


@contextmanager
def told(ledger: Ledger, there: Callable[[], Sequence[Ingredient]]) -> Iterator[None]:
    """Tell the ledger which adapters are kept and which are new, however the training ends."""
    before = {one.digest for one in there()}
    try:
        yield
    finally:
        for one in there():
            (ledger.keeps if one.digest in before else ledger.made)("trainings", one.digest)


def _made(setting: Setting, grid: Grid) -> list[Ingredient]:
    """The cells of a grid that are there."""
    return [
        cell(setting, grid, rate, order)
        for rate in grid.rates
        for order in grid.orders
        if _folder(setting, grid, rate, order).is_dir()
    ]


def sweep_arguments(setting: Setting, grid: Grid, folder: Path, *, processes: int, on: str | None = None) -> list[str]:
    """What `soup` is told to train a grid."""
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
    folder = _folder(setting, grid, rate, order)
    return ingredient(f"{grid.init}-{grid.init_seed}/{folder.name}", folder)


def _folder(setting: Setting, grid: Grid, rate: float, order: int) -> Path:
    return _out(setting, grid) / f"{setting.sizes.domain}-lr{rate:g}-seed{order}"


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


# --- the shared adapters again ----------------------------------------------------------------------


@dataclass(frozen=True)
class Again:
    """An adapter that was trained elsewhere, and ours from the same recipe and initial tensors."""

    domain: str
    recorded: Mapping[str, Any]
    parameters: int
    theirs: Ingredient
    made: Ingredient


def train_again(
    setting: Setting, *, processes: int, say: Say, ledger: Ledger, domains: Sequence[str] = REPRODUCED
) -> list[Again]:
    """Each adapter again, several at once, one thread each; what is there is kept."""
    folder = setting.home.parent / "reproduced"
    context = multiprocessing.get_context("spawn")
    folders = [folder / domain for domain in domains]

    def there() -> list[Ingredient]:
        return [ingredient(one.name, one) for one in folders if one.is_dir()]

    with told(ledger, there), ProcessPoolExecutor(processes, mp_context=context) as pool:
        jobs = {
            pool.submit(train_one_again, setting.base, setting.data, setting.adapters, domain, folder): domain
            for domain in domains
        }
        for job in as_completed(jobs):
            job.result()
            say(f"{jobs[job]} trained from its recorded recipe")
    return [_found(setting, domain, folder) for domain in domains]


def train_one_again(base_entry: BaseEntry, data: Path, adapters: Path, domain: str, out: Path) -> None:
    """Train one domain as its record says, in fp32, from the recorded initial tensors."""
    torch.set_num_threads(1)
    base = load_base(base_entry)
    recorded = _record(adapters, domain)
    recipe, config = recorded_recipe(recorded), _config(recorded)
    job = Job("again", out, data, base_entry, (), (), "", out)
    data_of_domain = Data(*(job.texts("train", domain, part) for part in ("train", "valid")))
    inputs = TrainingInputs(config, data_of_domain, recipe, start=initial_tensors(adapters))
    about = inputs.record(base)
    if (out / domain).exists():
        kept = read_directory(out / domain).provenance.training
        if {name: kept.get(name) for name in about} == about:
            return
    saving = Saving(out / ".checkpoints" / domain)
    trained = train_adapter(base, inputs, saving=saving)
    trained.write(out / domain, base, domain=domain, base_id=base_entry.id, replace=True)
    discard(saving.folder)


def recorded_recipe(recorded: Mapping[str, Any]) -> Hyperparameters:
    """The recipe of a neutral adapter's record; raises Internal for one that our loop would not follow."""
    ours = {"optimizer": "AdamW", "schedule": "5 % warm-up, then linear to zero", "precision": "fp32"}
    for name, value in ours.items():
        if recorded.get(name) != value:
            raise Internal(f"The record says {name} {recorded.get(name)!r}, and only {value!r} is known here.")
    batch, block = recorded["batch"]
    return Hyperparameters(
        steps=recorded["steps"], batch=batch, block=block, learning_rate=recorded["learning_rate"], schedule="linear",
        warmup=0.05, weight_decay=recorded["weight_decay"], clip=recorded["clip"],
        data_seed=recorded["data_order_seed"],
    )  # fmt: skip


def _config(recorded: Mapping[str, Any]) -> BottleneckConfig:
    return BottleneckConfig(
        structure="bapna_firat", bottleneck=recorded["bottleneck"], activation=recorded["activation"]
    )


def _record(adapters: Path, domain: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((adapters / domain / "adapter.json").read_text(encoding="utf-8"))
    return found


def _found(setting: Setting, domain: str, folder: Path) -> Again:
    theirs = folder / "recorded" / domain
    fingerprint = shape_of(setting.base, setting.home.parent / "cache").fingerprint
    convert(
        setting.adapters, domain, theirs, base_model=setting.base.id, base_fingerprint=fingerprint, texts=None
    )  # fmt: skip
    return Again(
        domain=domain,
        recorded=_record(setting.adapters, domain),
        parameters=read_directory(folder / domain).provenance.training["parameters"]["trained"],
        theirs=ingredient(f"recorded/{domain}", theirs),
        made=ingredient(f"again/{domain}", folder / domain),
    )
