"""Trains and scores one variant on one task with one learning rate and seed.

Called by `__main__`. The split of a task, the order of its examples and the initial tensors depend on the seed alone,
so that variants are paired.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
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
from training.data import Data, read_lines
from training.spec import TrainingSpec
from training.tasks.answering import Question, QuestionAnswering
from training.tasks.classification import Classification, Labelled, agreement
from training.tasks.contract import Scored, Task, under
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
        chunks = [super(ByLength, self).scored(base, adapter, rows[indices]) for indices in torch.split(order, AT_ONCE)]
        logits, targets = torch.cat([chunk.states for chunk in chunks]), torch.cat([chunk.targets for chunk in chunks])
        return Scored(logits, targets, torch.full((len(rows),), 1 / len(rows)))


TASK, QUESTIONS = ByLength(), QuestionAnswering()
BASE = "minilm-l6"
"""The base model of tasks that name no other."""
SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class Split:
    """The examples of a task: to train, to choose the best state and the learning rate, and to score."""

    task: str
    kind: Task
    data: Data
    test: Sequence[Any]


class Place:
    """The base models by name, and the examples of the tasks in a folder of corpora, which all cells share."""

    def __init__(self, bases: Callable[[str], LoadedBase], data: Path) -> None:
        self._bases, self._data = bases, data
        self._items = cache(self._read)

    def base(self, task: str) -> LoadedBase:
        """The base model of a task."""
        return self._bases(PLAN["tasks"][task].get("base", BASE))

    def split(self, task: str, rows: int) -> Split:
        """The split of a task with this number of training examples, the same for all variants and seeds.

        Its test texts are the same for all numbers up to `reserved`, and for any number if the development set is
        large enough.
        """
        train, dev = self._items(task, "train"), self._items(task, "dev")
        data = Data(train[SETTING["valid"] :][:rows], train[: SETTING["valid"]])
        unused = train[SETTING["valid"] + max(rows, SETTING["reserved"]) :]
        test = sorted((dev + unused)[: SETTING["test"]], key=partial(self._tokens, task))
        return Split(task, _kind(task), data, test)

    def _read(self, task: str, split: str) -> list[Any]:
        values = [value for _, value in read_lines(self._data / PLAN["tasks"][task]["folder"] / f"{split}.jsonl.gz")]
        make = question_in_a_sentence if _kind(task) is QUESTIONS else _labelled
        items = [make(values[i]) for i in np.random.default_rng(0).permutation(len(values))]
        return [item for item in items if self._tokens(task, item) <= SETTING["longest"]]

    def _tokens(self, task: str, item: Labelled | Question) -> int:
        pair = (item.question, item.context) if isinstance(item, Question) else (item.text, item.pair)
        return len(self.base(task).tokenizer.backend_tokenizer.encode(*pair).ids)


def _kind(task: str) -> Task:
    return QUESTIONS if PLAN["tasks"][task]["score"] == "f1" else TASK


def _labelled(value: Mapping[str, Any]) -> Labelled:
    return Labelled(value["text_a"], str(value["label"]), value.get("text_b"))


def question_in_a_sentence(value: Mapping[str, Any]) -> Question:
    """A question of SQuAD with the sentence of its first answer as the context, and the answers that are within it."""
    context, first = value["context"], value["answers"][0]
    at = first["answer_start"]
    ends = [match.end() for match in SENTENCE_END.finditer(context)]
    begin = max([0, *(end for end in ends if end <= at)])
    end = min([len(context), *(end for end in ends if end >= at + len(first["text"]))])
    answers = dict.fromkeys((answer["text"], answer["answer_start"] - begin) for answer in value["answers"])
    within = [(text, start) for text, start in answers if 0 <= start <= end - begin - len(text)]
    return Question(value["question"], context[begin:end], tuple(within))


def setting_of(task: str, variant: Variant) -> str:
    """The digest of all that a cell depends on but for its learning rate, its seed and code without a version."""
    schedule = SETTING["schedules"][variant.schedule]
    numbers = {name: SETTING[name] for name in ("longest", "valid", "test", "reserved", "batch", "warmup", "part")}
    return digest_of([VERSION, PLAN["tasks"][task], variant.model_dump(mode="json"), schedule, numbers])[7:19]


def run_cell(place: Place, task: str, variant: Variant, rate: float, seed: int) -> dict[str, Any]:
    """The validation loss and the scores of a variant.

    A training that diverges answers with the majority's label, and no question.
    """
    began, schedule = _cpu_seconds(), SETTING["schedules"][variant.schedule]
    split = place.split(task, schedule["rows"])
    recipe = {
        "learning_rate": rate,
        "batch": SETTING["batch"],
        "warmup": SETTING["warmup"],
        "data_seed": seed,
        "steps": schedule["rows"] * schedule["epochs"] // SETTING["batch"],
        "evaluations": min(schedule["epochs"], EVALUATIONS),
        "block": SETTING["longest"],
    }
    cell: dict[str, Any] = {"valid_loss": None, "parameters": None}
    try:
        trained = _trained(place.base(task), variant, split, recipe, seed)
    except InvalidParameter as problem:
        if problem.param != "learning_rate":
            raise
        cell["scores"] = {"score": round(_score_without_training(split), 3)}
    else:
        cell = {"valid_loss": round(trained.valid_loss, 5), "parameters": trained.parameters}
        with torch.no_grad():
            cell["scores"] = {name: round(score, 3) for name, score in _scores(trained, variant, split, seed)}
    return {**cell, "seconds": round(_cpu_seconds() - began, 1)}


def _cpu_seconds() -> float:
    """Of this process, and of those that it has waited for."""
    return sum(os.times()[:4])


@dataclass(frozen=True)
class TrainedModel:
    """A trained model: its encoder, and an adapter with a head or the head alone."""

    base: LoadedBase
    adapter: AdapterModule
    valid_loss: float
    parameters: int


def _trained(
    base: LoadedBase, variant: Variant, split: Split, recipe: Mapping[str, Any], seed: int
) -> TrainedModel | Reference:
    fields = {"task": split.kind.key, "init_seed": seed, "recipe": recipe, **variant.spec}
    if "pruning" in fields:
        fields["pruning"] = {**fields["pruning"], "seed": seed}
    inputs = replace(inputs_of(TrainingSpec.model_validate(fields), base, split.data), task=split.kind)
    if variant.part == "peft" or variant.part == "adapters":
        return train_reference(variant.part, base, inputs, _rows(base, split, SETTING["longest"]))
    if variant.part is not None:
        tuned = fine_tune(
            base,
            split.data,
            hyperparameters=inputs.hyperparameters,
            trained_part=variant.part,
            layers=variant.layers,
            task=split.kind,
            seed=seed,
        )
        assert tuned.head is not None
        return TrainedModel(tuned.base, tuned.head, tuned.valid_losses[1], tuned.trained_parameters)
    if variant.scale != 1.0:
        start = create(inputs.config, base.shape, seed=seed, init=inputs.init, base=base.model).state_dict()
        projections = (".down.weight", ".up.weight")
        inputs = replace(
            inputs, start={name: value * variant.scale for name, value in start.items() if name.endswith(projections)}
        )
    trained = train_adapter(base, inputs)
    adapter = from_tensors(trained.config, base.shape, trained.tensors)
    return TrainedModel(base, adapter, trained.record["valid_loss"], trained.record["parameters"]["trained"])


# --- scores -----------------------------------------------------------------------------------------


def _scores(
    trained: TrainedModel | Reference, variant: Variant, split: Split, seed: int
) -> Iterator[tuple[str, float]]:
    """The score on the test examples; with `spans` also without layers' adapters, with `routes` of random routes."""
    if isinstance(trained, Reference):
        yield "score", _score(split, trained.logits.argmax(1))
        return
    if split.kind is QUESTIONS:
        metrics = QUESTIONS.metrics(
            trained.base, trained.adapter, split.test, block=SETTING["longest"], batch=4 * AT_ONCE
        )
        yield "score", 100 * metrics["f1"]
        return
    yield "score", _score(split, _logits(trained, split).argmax(1))
    if variant.measures is None or split.task != SETTING["measured_on"]:
        return
    split = replace(split, test=split.test[:: len(split.test) // SETTING["part"]])
    yield "intact", _score(split, _logits(trained, split).argmax(1))
    if variant.measures == "spans":
        layers = range(trained.base.shape.num_layers)
        half = len(layers) // 2
        for name, removed in {"all": layers, "lower": layers[:half], "upper": layers[half:]}.items():
            yield f"without_{name}", _without(trained, split, removed)
        yield "without_one", float(np.mean([_without(trained, split, [layer]) for layer in layers]))
    if isinstance(trained.adapter, BankAdapter):
        torch.manual_seed(seed)
        logits = []
        for _ in range(ROUTES):
            with trained.adapter.routed(trained.adapter.draw()):
                logits.append(_logits(trained, split))
        yield "route", float(np.mean([_score(split, route_logits.argmax(1)) for route_logits in logits]))
        yield "ensemble", _score(split, torch.stack(logits).softmax(2).mean(0).argmax(1))


def _without(trained: TrainedModel, split: Split, removed: Sequence[int]) -> float:
    """The score if the adapters of these layers add nothing; trained norms stay."""
    tensors = {
        name: torch.zeros_like(value) if ".up." in name and any(f"layers.{i}." in name for i in removed) else value
        for name, value in trained.adapter.state_dict().items()
    }
    adapter = from_tensors(trained.adapter.config, trained.base.shape, tensors)
    return _score(split, _logits(replace(trained, adapter=adapter), split).argmax(1))


def _logits(trained: TrainedModel, split: Split) -> Tensor:
    """(test examples, labels)."""
    rows = _rows(trained.base, split, trained.base.shape.context - trained.adapter.config.prefix_length)
    with under(trained.base, trained.adapter):
        return torch.cat(
            [
                Classification.scored(TASK, trained.base, trained.adapter, chunk).states
                for chunk in torch.split(rows, 4 * AT_ONCE)
            ]
        )


def _rows(base: LoadedBase, split: Split, block: int) -> Tensor:
    """The test examples as rows."""
    head = TASK.head(split.data.train)
    return torch.from_numpy(TASK.encode(base, split.test, block=block, at_least=1, head=head).rows)


def _score(split: Split, guesses: Any) -> float:
    """Accuracy or Matthews' correlation, in points."""
    truth = np.array([int(item.label) for item in split.test])
    return 100 * agreement(truth, np.asarray(guesses), labels=2)[PLAN["tasks"][split.task]["score"]]


def _score_without_training(split: Split) -> float:
    if split.kind is QUESTIONS:
        return 0.0
    majority = round(float(np.mean([int(item.label) for item in split.data.train])))
    return _score(split, np.full(len(split.test), majority))
