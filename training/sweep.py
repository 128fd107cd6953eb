"""A grid of trainings from one initialisation: learning rates x seeds of the data's order x domains.

Called by `soup train sweep`; the single-domain soups of AdapterSoup are made of one such grid (METHODS section 1).
Each cell is a directory to push. One that is there is not trained again, and one that was stopped goes on from its
checkpoint, so that the same call finishes what an earlier one began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from registry.base_model import LoadedBase
from registry.errors import Conflict, InvalidParameter, NotFound
from registry.folder import AdapterFolder, read_folder
from training.checkpoint import Saving, differences, discard
from training.loop import Progress
from training.making import Data, Member, inputs, make, passages, read_items
from training.recipe import recipe_of
from training.spec import TrainingSpec
from training.trainer import write_trained

CHECKPOINTS = ".checkpoints"
"""In the folder of the adapters: hidden, so that `OUT/*` names adapters only."""
DIVERGED = "learning_rate"


@dataclass(frozen=True)
class Domain:
    """The data of a domain, from `train.jsonl(.gz)` and `valid.jsonl(.gz)` of a folder."""

    name: str
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
    """What became of a cell: trained now, there before, or diverged, with the sentence that says where."""

    cell: Cell
    state: Literal["trained", "kept", "diverged"]
    folder: AdapterFolder | None = None
    problem: str | None = None

    @property
    def record(self) -> Mapping[str, Any]:
        """How the adapter was made; empty where there is none."""
        return {} if self.folder is None else self.folder.provenance.training


@dataclass(frozen=True)
class Plan:
    """All that the cells of a grid share: what is trained but for two numbers of its recipe, and the places."""

    spec: TrainingSpec
    out: Path
    members: tuple[Member, ...] = ()
    sample: int = 200
    base_id: str | None = None

    def spec_of(self, cell: Cell) -> TrainingSpec:
        """What a cell trains; raises InvalidParameter for a number out of its range."""
        numbers = {"learning_rate": cell.learning_rate, "data_seed": cell.data_seed}
        recipe_of(numbers)
        return self.spec.with_numbers(**numbers)


def read_domain(folder: Path, spec: TrainingSpec = TrainingSpec()) -> Domain:
    """The domain of a folder, called by its name, with the items of the spec's task.

    Raises NotFound where a file is missing, or as `read_items` does.
    """
    train, valid = (_file(folder, part) for part in ("train", "valid"))
    return Domain(folder.resolve().name, Data(read_items(spec, train), read_items(spec, valid)))


def _file(folder: Path, part: str) -> Path:
    for name in (f"{part}.jsonl", f"{part}.jsonl.gz"):
        if (folder / name).is_file():
            return folder / name
    raise NotFound(f"{folder} has no {part}.jsonl and no {part}.jsonl.gz: a domain is a folder with both parts.")


def grid(domains: Sequence[Domain], rates: Sequence[float], seeds: Sequence[int]) -> list[Cell]:
    """The cells, domain by domain; raises InvalidParameter where two have one name."""
    cells = [Cell(domain, rate, seed) for domain in domains for rate in rates for seed in seeds]
    names = [cell.name for cell in cells]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidParameter(f"{twice[0]} is in the grid twice: give each domain, rate and seed once.", param="grid")
    return cells


def sweep(
    base: LoadedBase,
    cells: Sequence[Cell],
    plan: Plan,
    *,
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[Row]:
    """Train the cells one after another, and give what became of each.

    A cell that diverges does not end the others. Before the first is trained, those that are there are checked:
    raises Conflict where one is of another training. Raises Cancelled when `should_stop` says so, and otherwise what
    `train_adapter` does.
    """
    specs = [plan.spec_of(cell) for cell in cells]
    kept = {cell.name: _kept(base, cell, plan, spec) for cell, spec in zip(cells, specs, strict=True)}
    for number, (cell, spec) in enumerate(zip(cells, specs, strict=True)):
        folder = kept[cell.name]
        if folder is not None:
            yield Row(cell, "kept", folder)
            continue
        yield _train(base, cell, plan, spec, _within(progress, number, len(cells), cell.name), should_stop)
    with suppress(OSError):  # the checkpoint of a cell that diverged is still in it
        (plan.out / CHECKPOINTS).rmdir()


def _within(progress: Progress | None, number: int, count: int, name: str) -> Progress | None:
    """Steps of one cell as steps of all of them."""
    if progress is None:
        return None
    return lambda step, steps, message: progress(number * steps + step, count * steps, f"{name}: {message}")


def _train(
    base: LoadedBase, cell: Cell, plan: Plan, spec: TrainingSpec, progress: Progress | None,
    should_stop: Callable[[], bool] | None,
) -> Row:  # fmt: skip
    domain, checkpoint = cell.domain, plan.out / CHECKPOINTS / cell.name
    try:
        trained = make(
            spec, base, domain.data, members=plan.members, progress=progress, should_stop=should_stop,
            saving=Saving(checkpoint),
        )  # fmt: skip
    except InvalidParameter as problem:
        if problem.param != DIVERGED:
            raise
        return Row(cell, "diverged", problem=problem.message)
    folder = write_trained(
        plan.out / cell.name, trained, base, domain=domain.name, base_id=plan.base_id,
        passages=passages(spec, domain.data.train, plan.sample, seed=spec.init_seed),
    )  # fmt: skip
    discard(checkpoint)
    return Row(cell, "trained", folder)


def _kept(base: LoadedBase, cell: Cell, plan: Plan, spec: TrainingSpec) -> AdapterFolder | None:
    """The cell's adapter where it is there; raises Conflict where it is of another training than the plan's."""
    path = plan.out / cell.name
    if not path.exists():
        return None
    folder = read_folder(path)
    config, now = inputs(spec, base, cell.domain.data, members=plan.members)
    record = folder.provenance.training
    found = differences({name: record.get(name) for name in now}, now)
    found += differences(_dense(folder.config.identity()), config.identity(), at="config")
    found += differences(folder.provenance.init_seed, spec.init_seed, at="init_seed")
    if found:
        raise Conflict(
            f"{path} is there, and of another training: {found[0]}. Choose another folder for the sweep, or remove it.",
            param="out",
            problems=[f"It differs in {one}." for one in found],
        )
    return folder


def _dense(identity: Any) -> Any:
    """A configuration as it was before pruning, which the record tells apart: what was pruned depends on the data."""
    if isinstance(identity, dict):
        return {name: _dense(value) for name, value in identity.items() if name != "pruned"}
    return [_dense(value) for value in identity] if isinstance(identity, list) else identity
