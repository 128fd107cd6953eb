"""Trains the base model itself, or a part of it, as a baseline for adapters (Houlsby et al., ICML 2019).

Called by `benchmarks.papers` and by the benchmark of training speed, in the same loop as adapters. `all` is full
fine-tuning, `top` only the last layers (section 3.2: "fine-tuning only the top k layers"), `norms` the parameters of
all norms (section 3.4). The result is another base model, which no registry stores.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from registry.adapters import AdapterModule, create
from registry.adapters.sites import layer_sites
from registry.base_model import LoadedBase
from registry.errors import InvalidParameter
from training.data import MIN_VALID_TEXTS, Data
from training.hyperparameters import Hyperparameters
from training.loop import optimise
from training.state import Objective, TrainingState
from training.tasks import LANGUAGE_MODELLING
from training.tasks.contract import Task
from training.trainer import loss_of

Part = Literal["all", "top", "norms"]


@dataclass(frozen=True)
class Tuned:
    """A copy of a base model with a part of it trained, and the head that the task needs.

    Its `shape` still has the fingerprint of the base it was copied from, whose tokenizer it uses.
    """

    base: LoadedBase
    valid_losses: tuple[float, float]
    """Mean NLL in nats on the validation data, before the training and at its best."""
    trained_parameters: int
    head: AdapterModule | None = None


def fine_tune(
    base: LoadedBase,
    data: Data,
    *,
    hyperparameters: Hyperparameters,
    trained_part: Part = "all",
    layers: int = 1,
    task: Task = LANGUAGE_MODELLING,
    seed: int = 0,
) -> Tuned:
    """Train a part of a copy of `base` in fp32, keeping its best state on validation data. Nothing of `base` changes.

    `layers` is how many of the last ones `trained_part="top"` trains; embeddings and the final norm are in none of
    them. A head that the task needs is trained with every part, and starts from `seed`. Raises InvalidParameter for
    more layers than there are, and as `train_adapter` does; Incompatible for a base whose layers are not known.
    """
    block = hyperparameters.block
    if block > base.shape.context:
        raise InvalidParameter(
            f"A block of {block} tokens does not fit the base model's context of {base.shape.context}.",
            param="block",
        )
    config = task.head(data.train)
    train = task.encode(base, data.train, block=block, head=config)
    valid = task.encode(base, data.valid, block=block, purpose="validation", at_least=MIN_VALID_TEXTS, head=config)
    tuned = replace(base, model=unfrozen(base.model, trained_part, layers=layers))
    head = None if config is None else create(config, base.shape, seed=seed)
    state = TrainingState(
        tuned.model if head is None else nn.ModuleList([tuned.model, head]),
        Objective(loss_of(tuned, head, task), margin=task.divergence_margin, unit=task.unit),
        train=train.rows,
        valid=valid.rows,
        hyperparameters=hyperparameters,
    )
    optimise(state)
    tuned.model.requires_grad_(False)
    return Tuned(
        tuned,
        (state.history[0][1], state.best[0]),
        sum(parameter.numel() for parameter in state.trained.values()),
        head,
    )


def unfrozen(model: nn.Module, trained_part: Part, *, layers: int = 1) -> nn.Module:
    """A copy of a model in fp32 whose parameters of `trained_part`, and no others, ask for gradients."""
    model_copy = copy.deepcopy(model).float().requires_grad_(False)
    for module in _modules(model_copy, trained_part, layers):
        module.requires_grad_(True)
    return model_copy


def _modules(model: nn.Module, trained_part: Part, layers: int) -> Iterator[nn.Module]:
    if trained_part == "all":
        yield model
    elif trained_part == "norms":  # of any kind: LayerNorm, LlamaRMSNorm and so on
        yield from (module for module in model.modules() if type(module).__name__.endswith("Norm"))
    else:
        blocks = [sites.block for sites in layer_sites(model)]
        if not 1 <= layers <= len(blocks):
            raise InvalidParameter(
                f"The base model has {len(blocks)} layers, and {layers} of them were to be trained.", param="layers"
            )
        yield from blocks[-layers:]
