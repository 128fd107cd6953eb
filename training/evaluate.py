"""Measure an adapter's metrics for a task on data that it was not trained on.

Called by `soup evaluate`, experiments and tests. The task is an argument, or read from a directory that `soup train`
wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from registry.adapters import AdapterModule, from_tensors
from registry.adapters.weights import load_tensors
from registry.base_model import LoadedBase
from registry.errors import Incompatible, InvalidParameter
from registry.formats import AdapterDirectory
from training.spec import TaskKey
from training.tasks import LANGUAGE_MODELLING, TASKS
from training.tasks.contract import Task


def evaluate_task(
    base: LoadedBase,
    adapter: AdapterModule | None,
    task: Task,
    items: Sequence[Any],
    *,
    block: int | None = None,
    batch: int = 8,
) -> dict[str, float]:
    """Compute the task's metrics on `items` under the base with `adapter`, or alone; leaves the base unchanged.

    `block` is the most tokens of a sequence, by default what the context leaves; `batch` sequences run at once. Rates
    are shares (0.9), losses in nats; a bank is measured as its merge. Raises InvalidParameter for no items, a label
    outside the adapter's or a block beyond the context, Incompatible if base, adapter and task do not fit.
    """
    task.check_base(base)
    available = base.shape.context - (0 if adapter is None else adapter.config.prefix_length)
    if block is not None and not 2 <= block <= available:
        raise InvalidParameter(
            f"A block of {block} tokens is not between 2 and {available}, what the base model's context leaves.",
            param="block",
        )
    if not items:
        raise InvalidParameter("The evaluation data is empty.", param="data")
    return task.metrics(base, adapter, items, block=block or available, batch=batch)


def task_of(folder: AdapterDirectory, key: TaskKey | None = None) -> Task:
    """Return the task an adapter was trained for, by its head or its record; by default language modelling.

    With `key` it is that task. The options of the task come from the adapter's record.
    """
    task = _recorded_task(folder) if key is None else TASKS[key]
    return task.trained(folder.provenance.training)


def _recorded_task(folder: AdapterDirectory) -> Task:
    head = folder.config.head
    name = folder.provenance.training.get("task")
    for task in TASKS.values():
        if task.answers == (None if head is None else head.task) and (head is not None or task.name == name):
            return task
    return LANGUAGE_MODELLING


def adapter_of(folder: AdapterDirectory, base: LoadedBase) -> AdapterModule:
    """Load the adapter of a directory for `base`.

    Raises Incompatible if it was made for another base model or its tensors do not fit; InvalidWeights.
    """
    if folder.base_fingerprint not in (None, base.shape.fingerprint):
        raise Incompatible(
            f"The adapter in {folder.path} was made for the base model with fingerprint {folder.base_fingerprint}, and "
            f"{base.entry.id!r} is {base.shape.fingerprint}.",
            param="base",
        )
    tensors = load_tensors(folder.weights.read_bytes())
    return from_tensors(folder.config, base.shape, tensors).to(base.model.device)
