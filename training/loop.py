"""The optimisation loop: AdamW, warm-up and linear decay, clipping, the best state by validation loss.

Called by the trainer of adapters and by the demo's training of its base model. It knows a module whose parameters
are trained and a function from a batch to its loss, nothing of what either is. On the CPU the same seeds, data and
number of threads give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from registry.errors import Cancelled, InvalidParameter
from registry.spec import Frozen

Progress = Callable[[int, int, str], object]
"""(step, steps, message)."""
MeanNll = Callable[[Tensor], Tensor]
"""Blocks (batch, block) -> mean NLL per predicted token in nats, differentiable."""


class Recipe(Frozen):
    """How a loop runs. `warmup` is a share of the steps; `evaluations` of validation loss are spread over them.

    Defaults suit bottleneck adapters on small base models; the papers use 1e-4 and 20 epochs on GPT-2 small.
    """

    steps: int = Field(default=200, ge=1, le=1_000_000)
    batch: int = Field(default=8, ge=1, le=4096)
    block: int = Field(default=256, ge=2, le=131_072)
    learning_rate: float = Field(default=1e-3, gt=0)
    warmup: float = Field(default=0.05, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)
    beta2: float = Field(default=0.999, gt=0, lt=1)
    clip: float = Field(default=1.0, gt=0)
    evaluations: int = Field(default=4, ge=1)
    data_seed: int = Field(default=0, ge=0, lt=2**32)

    def learning_rate_at(self, step: int) -> float:
        """The rate of step 1 to `steps`: up over the warm-up, then linearly towards zero after the last."""
        rising = max(1, round(self.warmup * self.steps))
        if step <= rising:
            return self.learning_rate * step / rising
        return self.learning_rate * (self.steps - step + 1) / (self.steps - rising + 1)

    def evaluated_at(self) -> set[int]:
        """The steps after which validation loss is taken; the last one always is."""
        return {max(1, round(self.steps * i / self.evaluations)) for i in range(1, self.evaluations + 1)}


@dataclass(frozen=True)
class Outcome:
    """What a loop did: validation loss (mean NLL in nats) before the first step and at its best, and on the way."""

    best_step: int
    valid_before: float
    valid_best: float
    history: tuple[tuple[int, float], ...]
    train_tokens: int


def optimise(
    module: nn.Module,
    mean_nll: MeanNll,
    *,
    train: np.ndarray,
    valid: np.ndarray,
    recipe: Recipe,
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Outcome:
    """Train the parameters of `module` that require gradients, and leave it in its best state by validation loss.

    `train` and `valid` are int64 (blocks, block). The state before the first step takes part, so the outcome is
    never worse on `valid` than doing nothing. Raises InvalidParameter with step and learning rate where the loss
    diverges, Cancelled when `should_stop` says so.
    """
    optimiser = torch.optim.AdamW(
        [p for p in module.parameters() if p.requires_grad],
        lr=recipe.learning_rate, betas=(0.9, recipe.beta2), weight_decay=recipe.weight_decay,
    )  # fmt: skip
    before = _evaluate(mean_nll, valid, recipe.batch)
    history, best, kept = [(0, before)], (before, 0), _copy(module)
    guard = _Guard(recipe)
    for step, batch in enumerate(_batches(train, recipe), start=1):
        if should_stop is not None and should_stop():
            raise Cancelled(f"Training was cancelled at step {step} of {recipe.steps}.")
        loss = _step(optimiser, mean_nll(torch.from_numpy(batch)), recipe, step, guard)
        if step in recipe.evaluated_at():
            found = _evaluate(mean_nll, valid, recipe.batch)
            guard.check(found, step)
            history.append((step, found))
            if found < best[0]:
                best, kept = (found, step), _copy(module)
        if progress is not None:
            progress(step, recipe.steps, f"loss {loss:.3f}, best on validation {best[0]:.3f}")
    module.load_state_dict(kept)
    return Outcome(
        best_step=best[1], valid_before=before, valid_best=best[0], history=tuple(history),
        train_tokens=recipe.steps * min(recipe.batch, len(train)) * (train.shape[1] - 1),
    )  # fmt: skip


def _step(optimiser: torch.optim.Optimizer, loss: Tensor, recipe: Recipe, step: int, guard: _Guard) -> float:
    """One update; gives the loss it came from."""
    value = float(loss.detach())
    guard.check(value, step)
    for group in optimiser.param_groups:
        group["lr"] = recipe.learning_rate_at(step)
    optimiser.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    trained = [p for group in optimiser.param_groups for p in group["params"]]
    nn.utils.clip_grad_norm_(trained, recipe.clip)
    optimiser.step()
    return value


class _Guard:
    """Refuses a loss that is no number, or that has left where it began by more than any noise explains."""

    LEFT = 2.0  # nats per token above the first loss

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._first: float | None = None

    def check(self, loss: float, step: int) -> None:
        self._first = loss if self._first is None else self._first
        if math.isfinite(loss) and loss <= self._first + self.LEFT:
            return
        raise InvalidParameter(
            f"Training diverged at step {step} of {self._recipe.steps}: the loss is {loss:.4g} nats a token at "
            f"learning rate {self._recipe.learning_rate_at(step):.3g}, and it began at {self._first:.4g}. Use a lower "
            "learning rate.",
            param="learning_rate",
        )


def _batches(blocks: np.ndarray, recipe: Recipe) -> Iterator[np.ndarray]:
    """`steps` batches (batch, block): epoch after epoch, each in an order drawn from `data_seed`."""
    rng = np.random.default_rng(recipe.data_seed)
    size = min(recipe.batch, len(blocks))
    order = np.empty(0, dtype=np.int64)
    for _ in range(recipe.steps):
        while len(order) < size:
            order = np.concatenate([order, rng.permutation(len(blocks))])
        yield blocks[order[:size]]
        order = order[size:]


@torch.no_grad()
def _evaluate(mean_nll: MeanNll, blocks: np.ndarray, batch: int) -> float:
    """Mean NLL over all blocks, which are of one length."""
    total = 0.0
    for start in range(0, len(blocks), batch):
        part = blocks[start : start + batch]
        total += float(mean_nll(torch.from_numpy(part))) * len(part)
    return total / len(blocks)


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
