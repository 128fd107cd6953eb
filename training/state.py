"""Everything the next step of a training depends on, in one place: what a checkpoint has to hold.

Made by whoever trains, run by `training.loop`, which knows of the order of steps, of cancelling and of files. Here are
a module whose parameters are trained and functions from a batch to its loss, and nothing is known of what they are.
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
"""Of the curve of the training loss, about."""
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
Loss = Callable[[Tensor], Tensor]
"""Rows int64 (batch, width) -> their mean loss, a scalar that can be differentiated."""


@dataclass(frozen=True)
class Objective:
    """What is minimised, and how far above its first value a loss may be, in `unit`, before it has diverged.

    `valid_loss` scores validation data where that is not what is trained on.
    """

    loss: Loss
    valid_loss: Loss | None = None
    above: float = 2.0
    unit: str = "nats a token"


class Curve:
    """Training loss by step, as means over as many steps as give about `POINTS` of them."""

    def __init__(self, steps: int) -> None:
        self.points: list[tuple[int, float]] = []
        self._steps = steps
        self._window = math.ceil(steps / POINTS)
        self._sum, self._count = 0.0, 0

    def add(self, step: int, loss: float) -> None:
        """Take the loss of a step."""
        self._sum, self._count = self._sum + loss, self._count + 1
        if self._count == self._window or step == self._steps:
            self.points.append((step, self._sum / self._count))
            self._sum, self._count = 0.0, 0

    def end(self, step: int, loss: float | None) -> None:
        """Take no more: the steps begun are a point, and so is the `loss` that diverged, where it is a number."""
        if self._count:
            self.points.append((step - 1, self._sum / self._count))
            self._sum, self._count = 0.0, 0
        if loss is not None and math.isfinite(loss):
            self.points.append((step, loss))

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {"points": self.points, "sum": self._sum, "count": self._count}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.points = [(int(step), float(loss)) for step, loss in state["points"]]
        self._sum, self._count = float(state["sum"]), int(state["count"])


class Guard:
    """The check for divergence: refuses a loss that is no number, or is further above the first than noise explains."""

    def __init__(self, hyperparameters: Hyperparameters, objective: Objective) -> None:
        self._hyperparameters, self._objective = hyperparameters, objective
        self.first: float | None = None

    def check(self, loss: float, step: int) -> None:
        """Take the training loss of a step; raises InvalidParameter with step and learning rate."""
        self.first = loss if self.first is None else self.first
        self._refuse("loss", loss, step, began=self.first)

    def check_valid(self, loss: float, step: int, *, before: float | None) -> None:
        """Take a validation loss, `before` that before the first step: other text may be harder than that trained on.

        Raises InvalidParameter with step and learning rate.
        """
        if before is not None:
            self._refuse("validation loss", loss, step, began=before)
        elif not math.isfinite(loss):
            raise InvalidParameter(
                f"The validation loss is {loss} before the first step: the base model cannot be trained on this text "
                f"in {self._hyperparameters.dtype}.",
                param="dtype",
            )

    def _refuse(self, what: str, loss: float, step: int, *, began: float) -> None:
        if math.isfinite(loss) and loss <= began + self._objective.above:
            return
        steps, rate = self._hyperparameters.steps, self._hyperparameters.learning_rate_at(step)
        raise InvalidParameter(
            f"Training diverged at step {step} of {steps}: the {what} is {loss:.4g} {self._objective.unit} at "
            f"learning rate {rate:.3g}, and it began at {began:.4g}. Use a lower learning rate.",
            param="learning_rate",
        )


class TrainingState:
    """A training between two steps; `train` and `valid` are int64 (rows, width).

    Raises InvalidParameter where no parameter of `module` requires gradients, or its device has no such dtype.
    """

    def __init__(
        self, module: nn.Module, objective: Objective, *, train: np.ndarray, valid: np.ndarray,
        hyperparameters: Hyperparameters,
    ) -> None:  # fmt: skip
        self.hyperparameters, self._objective = hyperparameters, objective
        self.train, self.valid = train, valid
        self.trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        if not self.trained:
            raise _trains_nothing()
        self._changing = {**self.trained, **dict(module.named_buffers())}
        self.device = next(iter(self.trained.values())).device
        _check_dtype(hyperparameters, self.device)
        self._optimiser = torch.optim.AdamW(
            list(self.trained.values()), lr=hyperparameters.learning_rate,
            betas=(hyperparameters.beta1, hyperparameters.beta2), weight_decay=hyperparameters.weight_decay,
        )  # fmt: skip
        take = hyperparameters.batch * hyperparameters.accumulate
        self.order = DataOrder(len(train), take=take, seed=hyperparameters.data_seed)
        self.step, self.loss = 0, math.nan
        self.history: list[tuple[int, float]] = []
        self.best = (math.inf, 0)
        self._kept: dict[str, Tensor] = {}
        self.curve, self._guard = Curve(hyperparameters.steps), Guard(hyperparameters, objective)
        self.resume_note: str | None = None
        self._made_before: list[dict[str, Any]] = []

    def advance(self) -> None:
        """One update; raises InvalidParameter for a loss that diverges, which the curve then ends with."""
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
        """Mean loss of rows (size, width), its gradient left in the parameters, `batch` rows at a time.

        Rows are of one length, so each part counts as its share of them.
        """
        total = 0.0
        for part in self._parts(blocks):
            with self._precision():
                loss = self._objective.loss(torch.from_numpy(part)) * (len(part) / len(blocks))
            if not loss.requires_grad:
                raise _trains_nothing()
            total += float(loss.detach())
            loss.backward()  # type: ignore[no-untyped-call]
        return total

    @torch.no_grad()
    def evaluate(self) -> None:
        """Take the mean loss over the validation data, and keep the state where it is the best yet."""
        total, scored = 0.0, self._objective.valid_loss or self._objective.loss
        for part in self._parts(self.valid):
            with self._precision():
                total += float(scored(torch.from_numpy(part))) * len(part)
        found = total / len(self.valid)
        before = self.history[0][1] if self.history else None
        if math.isfinite(found):
            self.history.append((self.step, found))
        try:
            self._guard.check_valid(found, self.step, before=before)
        except InvalidParameter:
            self.curve.end(self.step + 1, None)
            raise
        if found < self.best[0]:
            self.best = (found, self.step)
            self._kept = {name: value.detach().clone() for name, value in self._changing.items()}

    def _parts(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """The rows of one forward pass after another."""
        batch = self.hyperparameters.batch
        return (rows[start : start + batch] for start in range(0, len(rows), batch))

    def _precision(self) -> AbstractContextManager[None]:
        if self.hyperparameters.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @torch.no_grad()
    def keep_best(self) -> None:
        """Bring the module to its best state."""
        for name, value in self._kept.items():
            self._changing[name].copy_(value)

    def tensors(self) -> dict[str, Tensor]:
        """The state's tensors, by the names that a checkpoint has them under."""
        found = {f"now.{name}": value for name, value in self._changing.items()}
        found |= {f"best.{name}": value for name, value in self._kept.items()}
        for name, parameter in self.trained.items():
            moments = self._optimiser.state.get(parameter, {})
            found |= {f"optimiser.{key}.{name}": moments[key] for key in _MOMENTS if key in moments}
        found["order"] = torch.from_numpy(self.order.state()[1])
        found["random.cpu"] = torch.get_rng_state()
        if self.device.type == "cuda":
            found["random.cuda"] = torch.cuda.get_rng_state(self.device)
        return found

    def as_json(self) -> dict[str, Any]:
        """All of the state that is no tensor."""
        return {
            "step": self.step, "best": self.best, "history": self.history, "curve": self.curve.state(),
            "first_loss": self._guard.first, "order": self.order.state()[0], "made_with": self.made(),
        }  # fmt: skip

    def made(self) -> list[dict[str, Any]]:
        """The `made_with` of every part of the training, one where it was never gone on with by another."""
        now = made_with()
        return [*(one for one in self._made_before if one != now), now]

    @torch.no_grad()
    def restore(self, saved: Saved) -> None:
        """Go on where a checkpoint was written; raises InvalidParameter for one that does not hold what it must.

        Values are copied into the tensors there are: their place in memory may decide the last bit of a product.
        """
        try:
            self._restore_tensors(saved.tensors)
            self._restore_state(saved.state, saved.tensors["order"].numpy())
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InvalidParameter(
                f"The checkpoint is not whole ({error}): delete it to start anew.", param="checkpoint"
            ) from error

    def _restore_tensors(self, tensors: dict[str, Tensor]) -> None:
        for name, value in self._changing.items():
            _fill(value, tensors[f"now.{name}"])
            self._kept[name] = _fill(torch.empty_like(value), tensors[f"best.{name}"])
        for name, parameter in self.trained.items():
            found = {key: tensors.get(f"optimiser.{key}.{name}") for key in _MOMENTS}
            if found["step"] is not None:
                self._optimiser.state[parameter] = {
                    key: value.clone() if key == "step" else _fill(torch.empty_like(parameter), value)
                    for key, value in found.items()
                    if value is not None
                }
        torch.set_rng_state(tensors["random.cpu"])
        if self.device.type == "cuda" and "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], self.device)

    def _restore_state(self, state: dict[str, Any], ahead: np.ndarray) -> None:
        self.order.restore(state["order"], ahead)
        self.curve.restore(state["curve"])
        self.step, self.best = int(state["step"]), (float(state["best"][0]), int(state["best"][1]))
        self.history = [(int(step), float(loss)) for step, loss in state["history"]]
        self._guard.first = None if state["first_loss"] is None else float(state["first_loss"])
        before = state.get("made_with") or []
        self._made_before = [before] if isinstance(before, dict) else list(before)  # one that was never gone on with
        self.resume_note = _note(self._made_before)


def made_with(threads: int | None = None) -> dict[str, Any]:
    """What may decide the last bits of a sum, and is in no recipe; by default on as many threads as torch has."""
    return {"torch": torch.__version__, "threads": torch.get_num_threads() if threads is None else threads}


def _note(before: list[dict[str, Any]]) -> str | None:
    """What of `made_with` was another when a checkpoint was written; None for one from before it was recorded."""
    found = differences(before[-1], made_with()) if before else []
    return f"The last bits may differ from an unbroken training's: {', '.join(found)}." if found else None


def _fill(tensor: Tensor, value: Tensor) -> Tensor:
    """`tensor` with the values of `value`; raises ValueError for another shape or dtype, which copying would hide."""
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        raise ValueError(f"a tensor of {list(value.shape)} where {list(tensor.shape)} is needed")
    return tensor.copy_(value)


def _check_dtype(hyperparameters: Hyperparameters, device: torch.device) -> None:
    """Refuse bf16 on a GPU that lacks it and would give something else; a CPU computes it in any case."""
    if hyperparameters.dtype == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(False):
        raise InvalidParameter("This GPU has no bfloat16: train in float32.", param="dtype")


def _trains_nothing() -> InvalidParameter:
    return InvalidParameter(
        "Nothing would be trained: no parameter that may change has an influence on the loss.", param="config"
    )
