"""Trains and scores one variant on one task with one learning rate and seed.

Called by `__main__`. The split of a task, the order of its examples and the initial tensors depend on the seed alone,
so that variants are paired.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.full_fine_tuning import fine_tune
from benchmarks.papers.references import Reference, train_reference
from benchmarks.papers.variants import PLAN, Variant
from registry.adapters import AdapterModule, create, from_tensors
from registry.adapters.experts import BankAdapter
from registry.base_model import LoadedBase
from registry.errors import InvalidParameter
from registry.names import digest_of
from training.build import inputs_of
from training.data import Data
from training.spec import TrainingSpec
from training.tasks.classification import Classification, Labelled, agreement
from training.tasks.contract import Scored, under
from training.trainer import train_adapter

SETTING = PLAN["setting"]
AT_ONCE = 8
"""Rows of a forward pass."""
ROUTES = 8
"""Random routes of a bank: their mean score, and the ensemble of their predictions."""
EVALUATIONS = 8
"""The most times that a training is scored on its validation data."""
VERSION = 1
"""Version of how cells are trained and scored; a new one discards all stored cells."""


class ByLength(Classification):
    """Classification that pads less: each batch is computed in parts of similar length."""

    def scored(self, base: LoadedBase, adapter: AdapterModule | None, rows: Tensor) -> Scored:
        """Logits (batch, labels), as without the parts; their order is by length."""
        order = (rows >= 0).sum(1).argsort(stable=True)
        parts = [super(ByLength, self).scored(base, adapter, rows[part]) for part in torch.split(order, AT_ONCE)]
        logits, targets = torch.cat([part.states for part in parts]), torch.cat([part.targets for part in parts])
        return Scored(logits, targets, torch.full((len(rows),), 1 / len(rows)))


TASK = ByLength()


@dataclass(frozen=True)
class Split:
    """The examples of a task: to train, to choose the best state and the learning rate, and to score."""

    task: str
    data: Data
    test: Sequence[Labelled]


class Place:
    """The encoder and the examples of the tasks, which all cells share."""

    def __init__(self, base: LoadedBase, glue: Path) -> None:
        self.base, self._glue = base, glue
        self._items = cache(self._read)

    def split(self, task: str, rows: int) -> Split:
        """The split of a task with this number of training examples, the same for all variants and seeds."""
        train, dev = self._items(task, "train"), self._items(task, "dev")
        data = Data(train[SETTING["valid"] :][:rows], train[: SETTING["valid"]])
        unused = train[SETTING["valid"] + max(schedule["rows"] for schedule in SETTING["schedules"].values()) :]
        return Split(task, data, sorted((dev + unused)[: SETTING["test"]], key=self._tokens))

    def _read(self, task: str, part: str) -> list[Labelled]:
        with gzip.open(self._glue / task / f"{part}.jsonl.gz", "rt", encoding="utf-8") as file:
            values = [json.loads(line) for line in file]
        order = np.random.default_rng(0).permutation(len(values))
        items = [Labelled(values[i]["text_a"], str(values[i]["label"]), values[i].get("text_b")) for i in order]
        return [item for item in items if self._tokens(item) <= SETTING["longest"]]

    def _tokens(self, item: Labelled) -> int:
        texts = [item.text] if item.pair is None else [item.text, item.pair]
        return len(self.base.tokenizer.backend_tokenizer.encode(*texts).ids)


def setting_of(task: str, variant: Variant) -> str:
    """The digest of all that a cell depends on but for its learning rate, its seed and code without a version."""
    schedule = SETTING["schedules"][variant.schedule]
    numbers = {name: SETTING[name] for name in ("longest", "valid", "test", "batch", "warmup", "part")}
    return digest_of([VERSION, task, variant.model_dump(mode="json"), schedule, numbers])[7:19]


def run_cell(place: Place, task: str, variant: Variant, rate: float, seed: int) -> dict[str, Any]:
    """The validation loss and the scores of a variant; a training that diverges answers with the majority's label."""
    began, schedule = _cpu_seconds(), SETTING["schedules"][variant.schedule]
    split = place.split(task, schedule["rows"])
    recipe = {
        "learning_rate": rate, "batch": SETTING["batch"], "warmup": SETTING["warmup"], "data_seed": seed,
        "steps": schedule["rows"] * schedule["epochs"] // SETTING["batch"],
        "evaluations": min(schedule["epochs"], EVALUATIONS), "block": SETTING["longest"],
    }  # fmt: skip
    found: dict[str, Any] = {"valid_loss": None, "parameters": None}
    try:
        made = _trained(place.base, variant, split, recipe, seed)
    except InvalidParameter as problem:
        if problem.param != "learning_rate":
            raise
        mean = np.mean([int(item.label) for item in split.data.train])
        found["scores"] = {"score": round(_score(split, np.full(len(split.test), round(float(mean)))), 3)}
    else:
        found = {"valid_loss": round(made.valid_loss, 5), "parameters": made.parameters}
        with torch.no_grad():
            found["scores"] = {name: round(score, 3) for name, score in _scores(made, variant, split, seed)}
    return {**found, "seconds": round(_cpu_seconds() - began, 1)}


def _cpu_seconds() -> float:
    """Of this process, and of those that it has waited for."""
    return sum(os.times()[:4])


@dataclass(frozen=True)
class Made:
    """A trained model: its encoder, and an adapter with a head or the head alone."""

    base: LoadedBase
    adapter: AdapterModule
    valid_loss: float
    parameters: int


def _trained(
    base: LoadedBase, variant: Variant, split: Split, recipe: Mapping[str, Any], seed: int
) -> Made | Reference:
    fields = {"task": TASK.key, "init_seed": seed, "recipe": recipe, **variant.spec}
    if "pruning" in fields:
        fields["pruning"] = {**fields["pruning"], "seed": seed}
    inputs = replace(inputs_of(TrainingSpec.model_validate(fields), base, split.data), task=TASK)
    if variant.part == "peft" or variant.part == "adapters":
        return train_reference(variant.part, base, inputs, _rows(base, split, SETTING["longest"]))
    if variant.part is not None:
        tuned = fine_tune(
            base, split.data, hyperparameters=inputs.hyperparameters, part=variant.part, layers=variant.layers,
            task=TASK, seed=seed,
        )  # fmt: skip
        assert tuned.head is not None
        return Made(tuned.base, tuned.head, tuned.outcome.valid_best, tuned.outcome.trained_parameters)
    if variant.scale != 1.0:
        start = create(inputs.config, base.shape, seed=seed, init=inputs.init, base=base.model).state_dict()
        projections = (".down.weight", ".up.weight")
        inputs = replace(
            inputs, start={name: value * variant.scale for name, value in start.items() if name.endswith(projections)}
        )
    trained = train_adapter(base, inputs)
    adapter = from_tensors(trained.config, base.shape, trained.tensors)
    return Made(base, adapter, trained.record["valid_loss"], trained.record["parameters"]["trained"])


# --- scores -----------------------------------------------------------------------------------------


def _scores(made: Made | Reference, variant: Variant, split: Split, seed: int) -> Iterator[tuple[str, float]]:
    """The score on the test examples; with `spans` also without layers' adapters, with `routes` of random routes."""
    if isinstance(made, Reference):
        yield "score", _score(split, made.logits.argmax(1))
        return
    yield "score", _score(split, _logits(made, split).argmax(1))
    if variant.measures is None or split.task != SETTING["measured_on"]:
        return
    split = replace(split, test=split.test[:: len(split.test) // SETTING["part"]])
    yield "intact", _score(split, _logits(made, split).argmax(1))
    if variant.measures == "spans":
        layers = range(made.base.shape.num_layers)
        half = len(layers) // 2
        for name, removed in {"all": layers, "lower": layers[:half], "upper": layers[half:]}.items():
            yield f"without_{name}", _without(made, split, removed)
        yield "without_one", float(np.mean([_without(made, split, [layer]) for layer in layers]))
    if isinstance(made.adapter, BankAdapter):
        torch.manual_seed(seed)
        logits = []
        for _ in range(ROUTES):
            with made.adapter.routed(made.adapter.draw()):
                logits.append(_logits(made, split))
        yield "route", float(np.mean([_score(split, one.argmax(1)) for one in logits]))
        yield "ensemble", _score(split, torch.stack(logits).softmax(2).mean(0).argmax(1))


def _without(made: Made, split: Split, removed: Sequence[int]) -> float:
    """The score if the adapters of these layers add nothing; trained norms stay."""
    tensors = {
        name: torch.zeros_like(value) if ".up." in name and any(f"layers.{i}." in name for i in removed) else value
        for name, value in made.adapter.state_dict().items()
    }
    adapter = from_tensors(made.adapter.config, made.base.shape, tensors)
    return _score(split, _logits(replace(made, adapter=adapter), split).argmax(1))


def _logits(made: Made, split: Split) -> Tensor:
    """(test examples, labels)."""
    rows = _rows(made.base, split, made.base.shape.context - made.adapter.config.prefix_length)
    with under(made.base, made.adapter):
        return torch.cat(
            [
                Classification.scored(TASK, made.base, made.adapter, part).states
                for part in torch.split(rows, 4 * AT_ONCE)
            ]
        )


def _rows(base: LoadedBase, split: Split, block: int) -> Tensor:
    """The test examples as rows."""
    head = TASK.head(split.data.train)
    return torch.from_numpy(TASK.encode(base, split.test, block=block, at_least=1, head=head).rows)


def _score(split: Split, guesses: Any) -> float:
    """Accuracy or Matthews' correlation, in points."""
    truth = np.array([int(item.label) for item in split.test])
    found = agreement(truth, np.asarray(guesses), labels=2)
    return 100 * found[PLAN["tasks"][split.task]]
