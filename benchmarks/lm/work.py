"""Runs one cell: its training and its measurements.

Called by the runner, in a separate process with one thread of torch. So a cell's numbers do not depend on the number of
parallel cells, or on the machine among equal ones. Results are plain JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.full_fine_tuning import fine_tune
from benchmarks.lm.cells import Cell, Data
from benchmarks.lm.cost import parameters, relative_cost
from benchmarks.lm.plan import Size
from benchmarks.lm.scoring import measured
from registry.adapters import AdapterModule, create, from_tensors
from registry.adapters.experts import merge_bank
from registry.adapters.weights import load_tensors, save_tensors
from registry.base_model import LoadedBase
from registry.errors import Internal, InvalidParameter
from registry.files import replace_file
from registry.names import digest_of
from registry.spec import BankConfig, FusionConfig
from training.data import Data as TrainingData
from training.data import draw, read_texts
from training.inputs import TrainingInputs
from training.methods.fusion import fusion_start
from training.trainer import train_adapter

DRAW_SEED = 0
INITIAL_STD = 1e-2
"""Standard deviation of the projections that `near_identity` draws."""
DIVERGED = "learning_rate"
Record = dict[str, Any]


@dataclass(frozen=True)
class Texts:
    """The passages of a domain that cells see."""

    train: list[str]
    valid: list[str]
    test: list[str]

    @property
    def seen(self) -> TrainingData:
        """The texts that a training sees."""
        return TrainingData(self.train, self.valid)

    @property
    def digest(self) -> str:
        """The digest of all of them in their order."""
        return digest_of([self.train, self.valid, self.test])


def texts_of(corpora: Path, domain: str, size: Size, *, tenth: bool = False) -> Texts:
    """Some passages of each part of a domain, drawn with one seed; a tenth is a part of all that are trained on."""
    parts = {part: read_texts(corpora / domain / f"{part}.jsonl.gz") for part in ("train", "valid", "test")}
    train = draw(parts["train"], size.texts, seed=DRAW_SEED)
    return Texts(
        draw(train, len(train) // 10, seed=DRAW_SEED) if tenth else train,
        draw(parts["valid"], size.valid_texts, seed=DRAW_SEED),
        draw(parts["test"], size.test_texts, seed=DRAW_SEED),
    )


def data_of(domain: str, texts: Texts, *, tenth: bool = False) -> Data:
    """The description of these passages in cells."""
    return Data(
        domain=domain, tenth=tenth, texts=len(texts.train), valid_texts=len(texts.valid), test_texts=len(texts.test),
        digest=texts.digest,
    )  # fmt: skip


def run_cell(cell: Cell, base: LoadedBase, texts: Texts, folder: Path) -> Record:
    """Train and score a cell; `folder` holds the adapters of others, and takes this one where it is kept.

    A loss that diverges is a result, recorded under `diverged`. Raises Internal for other texts than the cell's.
    """
    if texts.digest != cell.data.digest:
        raise Internal(f"The texts of {cell.data.domain} are not those that the cell is of.")
    try:
        made = _made(cell, base, texts, folder)
    except InvalidParameter as problem:
        if problem.param != DIVERGED:
            raise
        return {"diverged": problem.message}
    return {**made.record, **measured(cell, made.base, texts.test, made.served, made.trained)}


@dataclass(frozen=True)
class Made:
    """The model that a cell scores: a base model, its adapter (for a bank its merge), and the record of the
    training.
    """

    base: LoadedBase
    record: Record
    served: AdapterModule | None = None
    trained: AdapterModule | None = None


def _made(cell: Cell, base: LoadedBase, texts: Texts, folder: Path) -> Made:
    if cell.trains == "nothing":
        return Made(base, {"parameters_trained": 0, "parameters_served": 0, "relative_cost": 1.0})
    if cell.trains == "adapter":
        return _adapter(cell, base, texts, folder)
    tuned = fine_tune(base, texts.seen, hyperparameters=cell.recipe, part=cell.trains, layers=cell.layers)
    found = tuned.outcome
    return Made(
        tuned.base,
        {
            "parameters_trained": found.trained_parameters,
            "parameters_served": 0,
            "relative_cost": 1.0,
            "best_step": found.best_step,
            "history": [[step, nll] for step, nll in found.history],
        },
    )


def _adapter(cell: Cell, base: LoadedBase, texts: Texts, folder: Path) -> Made:
    assert cell.config is not None
    inputs = TrainingInputs(
        cell.config, texts.seen, cell.recipe, init_seed=cell.seed, init=cell.init, pruning=cell.pruning,
        consistency=cell.consistency, start=_start(cell, base, folder),
    )  # fmt: skip
    made = train_adapter(base, inputs)
    if cell.keeps:
        _keep(folder, cell.key, made.tensors)
    config = made.config
    trained = from_tensors(config, base.shape, made.tensors)
    if isinstance(config, BankConfig):
        served = from_tensors(config.expert, base.shape, merge_bank(config, made.tensors))
    else:
        served = trained
    return Made(
        base,
        {
            "parameters_trained": made.record["parameters"]["trained"],
            "parameters_served": parameters(served.config, served.state_dict()),
            "relative_cost": relative_cost(served.config, base.shape),
            "best_step": made.record["best_step"],
            "history": made.record["valid_history"],
        },
        served,
        trained,
    )


def _start(cell: Cell, base: LoadedBase, folder: Path) -> Mapping[str, Tensor] | None:
    """Replacements of the initial tensors: a fusion's members, or projections of another scale."""
    if isinstance(cell.config, FusionConfig):
        return fusion_start(
            cell.config, [load_tensors((folder / adapter_file(key)).read_bytes()) for key in cell.members]
        )
    if cell.std is None:
        return None
    assert cell.config is not None
    drawn = create(cell.config, base.shape, seed=cell.seed, init=cell.init, base=base.model).state_dict()
    factor = cell.std / INITIAL_STD
    return {name: tensor * factor for name, tensor in drawn.items() if name.endswith((".down.weight", ".up.weight"))}


def adapter_file(key: str) -> str:
    """The file name of a cell's adapter."""
    return f"{key.removeprefix('sha256:')}.safetensors"


def _keep(folder: Path, key: str, tensors: Mapping[str, Tensor]) -> None:
    path = folder / adapter_file(key)
    replace_file(path, save_tensors(tensors), temporary=path.with_suffix(".new"))
