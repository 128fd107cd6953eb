"""The state of a training: everything the next step depends on, which is what a checkpoint has to hold.

Built by the trainer and run by `training.loop`, which owns the order of steps, cancelling and files. This module sees a
module with trainable parameters and a function from a batch to its loss, and no tasks or adapters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from registry.errors import InvalidParameter
from training.checkpoint import Saved, differences
from training.data import DataOrder
from training.hyperparameters import Hyperparameters

POINTS = 100
"""Approximate number of points of the training loss curve."""
STEP_MARGIN = 10.0
"""The least margin of a training loss: the first batch may be one easy text. Validation losses are of equal data."""
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
Loss = Callable[[Tensor], Tensor]
"""Rows int64 (batch, width) -> their mean loss, a scalar that can be differentiated."""


@dataclass(frozen=True)
class Objective:
    """The loss to minimise, and how far above its first value it may be (`margin`, in `unit`) before it has diverged.

    `valid_loss` scores validation data if that is another function than the training loss. The margin of a training
    loss is at least STEP_MARGIN.
    """

    loss: Loss
    valid_loss: Loss | None = None
    margin: float = 2.0
    unit: str = "nats a token"


class Curve:
    """Training loss by step, averaged over windows that give about `POINTS` points."""

    def __init__(self, steps: int) -> None:
        self.points: list[tuple[int, float]] = []
        self._steps = steps
        self._window = math.ceil(steps / POINTS)
        self._sum, self._count = 0.0, 0

    def add(self, step: int, loss: float) -> None:
        """Add the loss of a step."""
        self._sum, self._count = self._sum + loss, self._count + 1
        if self._count == self._window or step == self._steps:
            self.points.append((step, self._sum / self._count))
            self._sum, self._count = 0.0, 0

    def end(self, step: int, loss: float | None) -> None:
        """End the curve early: adds the open window, and the `loss` that diverged if it is finite."""
        if self._count:
            self.points.append((step - 1, self._sum / self._count))
            self._sum, self._count = 0.0, 0
        if loss is not None and math.isfinite(loss):
            self.points.append((step, loss))

    def state(self) -> dict[str, Any]:
        """Return the curve as JSON."""
        return {"points": self.points, "sum": self._sum, "count": self._count}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.points = [(int(step), float(loss)) for step, loss in state["points"]]
        self._sum, self._count = float(state["sum"]), int(state["count"])


class Guard:
    """The check for divergence: refuses a loss that is not finite or too far above the first."""

    def __init__(self, hyperparameters: Hyperparameters, objective: Objective) -> None:
        self._hyperparameters, self._objective = hyperparameters, objective
        self.first: float | None = None

    def check(self, loss: float, step: int) -> None:
        """Check the training loss of a step; raises InvalidParameter with step and learning rate."""
        self.first = loss if self.first is None else self.first
        self._refuse("loss", loss, step, start=self.first, margin=max(STEP_MARGIN, self._objective.margin))

    def check_valid(self, loss: float, step: int, *, start: float | None) -> None:
        """Check a validation loss against `start`, the one before the first step (None at that step).

        Raises InvalidParameter with step and learning rate.
        """
        if start is not None:
            self._refuse("validation loss", loss, step, start=start, margin=self._objective.margin)
        elif not math.isfinite(loss):
            raise InvalidParameter(
                f"The validation loss is {loss} before the first step: the adapter's start (its scale, alpha or "
                f"members) or the base model gives values that are not finite in {self._hyperparameters.dtype}."
            )

    def _refuse(self, name: str, loss: float, step: int, *, start: float, margin: float) -> None:
        if math.isfinite(loss) and loss <= start + margin:
            return
        steps, rate = self._hyperparameters.steps, self._hyperparameters.learning_rate_at(step)
        raise InvalidParameter(
            f"Training diverged at step {step} of {steps}: the {name} is {loss:.4g} {self._objective.unit} at "
            f"learning rate {rate:.3g}, and it began at {start:.4g}. Use a lower learning rate.",
            param="learning_rate",
        )


class TrainingState:
    """A training between two steps; `train` and `valid` are int64 (rows, width).

    Raises InvalidParameter if no parameter of `module` requires gradients, or its device lacks the dtype.
    """

    def __init__(
        self,
        module: nn.Module,
        objective: Objective,
        *,
        train: np.ndarray,
        valid: np.ndarray,
        hyperparameters: Hyperparameters,
    ) -> None:
        self.hyperparameters, self._objective = hyperparameters, objective
        self.train, self.valid = train, valid
        self.trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        if not self.trained:
            raise _trains_nothing()
        self._changing = {**self.trained, **dict(module.named_buffers())}
        self.device = next(iter(self.trained.values())).device
        _check_dtype(hyperparameters, self.device)
        self._optimiser = torch.optim.AdamW(
            list(self.trained.values()),
            lr=hyperparameters.learning_rate,
            betas=(hyperparameters.beta1, hyperparameters.beta2),
            weight_decay=hyperparameters.weight_decay,
        )
        take = hyperparameters.batch * hyperparameters.accumulate
        self.order = DataOrder(len(train), take=take, seed=hyperparameters.data_seed)
        self.step, self.loss = 0, math.nan
        self.history: list[tuple[int, float]] = []
        self.best = (math.inf, 0)
        self._best_tensors: dict[str, Tensor] = {}
        self.curve, self._guard = Curve(hyperparameters.steps), Guard(hyperparameters, objective)
        self.resumed_at: int | None = None
        """The step of the checkpoint that the training continues from."""
        self.resume_note: str | None = None
        """A note on how the environment that decides the last bits has changed since that checkpoint."""
        self._earlier_environments: list[dict[str, Any]] = []

    def advance(self) -> None:
        """Make one update; raises InvalidParameter for a loss that diverges, which becomes the end of the curve."""
        step = self.step + 1
        for group in self._optimiser.param_groups:
            group["lr"] = self.hyperparameters.learning_rate_at(step)
        self._optimiser.zero_grad(set_to_none=True)
        self.loss = self._gradient(self.train[self.order.next()])
        try:
            self._guard.check(self.loss, step)
        except InvalidParameter:
            self.curve.end(step, self.loss)
            raise
        if step == 1 and not any(value.grad is not None and value.grad.any() for value in self.trained.values()):
            raise _trains_nothing()  # a scale of 0, say
        nn.utils.clip_grad_norm_(list(self.trained.values()), self.hyperparameters.clip)
        self._optimiser.step()
        self.curve.add(step, self.loss)
        self.step = step

    def _gradient(self, blocks: np.ndarray) -> float:
        """Compute the mean loss of rows (size, width) and add its gradients, `batch` rows at a time.

        Rows have one length, so each batch weighs by its number of rows.
        """
        total = 0.0
        for rows in self._batches(blocks):
            with self._precision():
                loss = self._objective.loss(torch.from_numpy(rows)) * (len(rows) / len(blocks))
            if not loss.requires_grad:
                raise _trains_nothing()
            total += float(loss.detach())
            loss.backward()  # type: ignore[no-untyped-call]
        return total

    @torch.no_grad()
    def evaluate(self) -> None:
        """Record the mean loss over the validation data, and save the state if it is the best yet."""
        total, loss_of = 0.0, self._objective.valid_loss or self._objective.loss
        for rows in self._batches(self.valid):
            with self._precision():
                total += float(loss_of(torch.from_numpy(rows))) * len(rows)
        loss = total / len(self.valid)
        start = self.history[0][1] if self.history else None
        if math.isfinite(loss):
            self.history.append((self.step, loss))
        try:
            self._guard.check_valid(loss, self.step, start=start)
        except InvalidParameter:
            self.curve.end(self.step + 1, None)
            raise
        if loss < self.best[0]:
            self.best = (loss, self.step)
            self._best_tensors = {name: value.detach().clone() for name, value in self._changing.items()}

    def _batches(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the rows of each forward pass."""
        batch = self.hyperparameters.batch
        return (rows[start : start + batch] for start in range(0, len(rows), batch))

    def _precision(self) -> AbstractContextManager[None]:
        if self.hyperparameters.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @torch.no_grad()
    def keep_best(self) -> None:
        """Restore the module's best state."""
        for name, value in self._best_tensors.items():
            self._changing[name].copy_(value)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state's tensors by their names in a checkpoint."""
        tensors = {f"now.{name}": value for name, value in self._changing.items()}
        tensors |= {f"best.{name}": value for name, value in self._best_tensors.items()}
        for name, parameter in self.trained.items():
            moments = self._optimiser.state.get(parameter, {})
            tensors |= {f"optimiser.{key}.{name}": moments[key] for key in _MOMENTS if key in moments}
        tensors["order"] = torch.from_numpy(self.order.state()[1])
        tensors["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self.device)
        return tensors

    def as_json(self) -> dict[str, Any]:
        """Return the part of the state that is no tensor."""
        return {
            "step": self.step,
            "best": self.best,
            "history": self.history,
            "curve": self.curve.state(),
            "first_loss": self._guard.first,
            "order": self.order.state()[0],
            "made_with": self.environments(),
        }

    def environments(self) -> list[dict[str, Any]]:
        """Return the `made_with` of every process that ran some of the training, without repetition."""
        current = made_with()
        return [*(environment for environment in self._earlier_environments if environment != current), current]

    @torch.no_grad()
    def restore(self, saved: Saved) -> None:
        """Continue from a checkpoint; raises InvalidParameter if it is incomplete.

        Values are copied into the existing tensors: their address may decide the last bit of a product.
        """
        try:
            self._restore_tensors(saved.tensors)
            self._restore_state(saved.state, saved.tensors["order"].numpy())
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            if is_out_of_memory(error):  # the checkpoint is whole, and a server would delete it
                raise
            raise InvalidParameter(
                f"The checkpoint is not whole ({error}): delete it to start again.", param="checkpoint"
            ) from error

    def _restore_tensors(self, tensors: dict[str, Tensor]) -> None:
        for name, value in self._changing.items():
            _fill(value, tensors[f"now.{name}"])
            self._best_tensors[name] = _fill(torch.empty_like(value), tensors[f"best.{name}"])
        for name, parameter in self.trained.items():
            moments = {key: tensors.get(f"optimiser.{key}.{name}") for key in _MOMENTS}
            if moments["step"] is not None:
                self._optimiser.state[parameter] = {
                    key: value.clone() if key == "step" else _fill(torch.empty_like(parameter), value)
                    for key, value in moments.items()
                    if value is not None
                }
        torch.set_rng_state(tensors["random.cpu"])
        if self.device.type == "cuda" and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], self.device)

    def _restore_state(self, state: dict[str, Any], ahead: np.ndarray) -> None:
        self.order.restore(state["order"], ahead)
        self.curve.restore(state["curve"])
        self.step, self.best = int(state["step"]), (float(state["best"][0]), int(state["best"][1]))
        self.resumed_at = self.step
        self.history = [(int(step), float(loss)) for step, loss in state["history"]]
        self._guard.first = None if state["first_loss"] is None else float(state["first_loss"])
        self._earlier_environments = list(state["made_with"])
        self.resume_note = _note(self._earlier_environments)


def made_with(threads: int | None = None) -> dict[str, Any]:
    """The software versions and threads that decide the last bits of a sum; by default torch's number of threads."""
    return {"torch": torch.__version__, "threads": torch.get_num_threads() if threads is None else threads}


def _note(environments: list[dict[str, Any]]) -> str | None:
    """Describe how `made_with` differs from when the checkpoint was written; None if it does not or is unknown."""
    changes = differences(environments[-1], made_with()) if environments else []
    return f"The last bits may differ from an unbroken training's: {', '.join(changes)}." if changes else None


def is_out_of_memory(error: Exception) -> bool:
    """Return True if torch could not allocate memory, on a GPU or on the CPU, whose error has no class of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _fill(tensor: Tensor, value: Tensor) -> Tensor:
    """Copy `value` into `tensor`; raises ValueError for another shape or dtype, which `copy_` would convert."""
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        raise ValueError(f"a tensor of {list(value.shape)} where {list(tensor.shape)} is needed")
    return tensor.copy_(value)


def _check_dtype(hyperparameters: Hyperparameters, device: torch.device) -> None:
    """Raise InvalidParameter for bf16 on a GPU without it; every CPU computes it."""
    if hyperparameters.dtype == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        raise InvalidParameter("This GPU has no bfloat16: train in float32.", param="dtype")


def _trains_nothing() -> InvalidParameter:
    return InvalidParameter(
        "Nothing would be trained: no parameter that may change has an influence on the loss.", param="config"
    )
