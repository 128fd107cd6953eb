"""The optimisation loop: AdamW, warm-up and decay, accumulation, clipping, the best state by validation loss.

Called by the trainer of adapters and by the demo's training of its base model. It knows a module whose parameters
are trained and a function from a batch to its loss, nothing of what either is. On the CPU the same seeds, data,
number of threads and version of torch give the same bits, also where a checkpoint was gone on from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from registry.errors import Cancelled
from training.checkpoint import Checkpoint
from training.recipe import TrainingRecipe
from training.state import Limit, Run

Progress = Callable[[int, int, str], object]
"""(step, steps, message)."""
MeanNll = Callable[[Tensor], Tensor]
"""Blocks (batch, block) -> mean NLL per predicted token in nats, differentiable."""


@dataclass(frozen=True)
class Outcome:
    """What a loop did: validation loss (mean NLL in nats) before the first step and at its best, and on the way.

    `train_history` holds about a hundred (step, mean training loss since the one before). `resumed_at` is the step
    after which a checkpoint was gone on from, None where there was none; it has no influence on all else.
    `resume_note` says where what may decide the last bits was another when that checkpoint was written.
    """

    best_step: int
    valid_before: float
    valid_best: float
    history: tuple[tuple[int, float], ...]
    train_history: tuple[tuple[int, float], ...]
    train_tokens: int
    trained_parameters: int
    examples: int
    resumed_at: int | None = None
    resume_note: str | None = None


def optimise(
    module: nn.Module,
    mean_nll: MeanNll,
    *,
    train: np.ndarray,
    valid: np.ndarray,
    recipe: TrainingRecipe,
    valid_loss: MeanNll | None = None,
    limit: Limit = Limit(),
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
    checkpoint: Checkpoint | None = None,
) -> Outcome:
    """Train the parameters of `module` that require gradients, and leave it in its best state by validation loss.

    `train` and `valid` are int64 (blocks, block). The state before the first step takes part, so the outcome is
    never worse on `valid` than doing nothing. `valid_loss` scores `valid` where that is not what is trained on, and
    `limit` says beyond what a loss has diverged. With a `checkpoint` the training goes on from what it holds, and saves
    itself in it; it is there still at the end, for whoever stores the result to discard.

    Raises InvalidParameter where nothing is trained, and with step and learning rate where the loss diverges;
    Cancelled when `should_stop` says so; Conflict for the checkpoint of another training.
    """
    run = Run(module, mean_nll, train=train, recipe=recipe, valid_loss=valid_loss, limit=limit)
    with nullcontext() if checkpoint is None else checkpoint.held(), _randomness(recipe.data_seed, run.device):
        resumed_at = _begin(run, valid, checkpoint)
        while run.step < recipe.steps:
            if should_stop is not None and should_stop():
                raise _cancelled(run, checkpoint)
            _one_step(run, valid, checkpoint)
            if progress is not None:
                progress(run.step, recipe.steps, f"loss {run.loss:.3f}, best on validation {run.best[0]:.3f}")
    run.keep_best()
    return Outcome(
        best_step=run.best[1], valid_before=run.history[0][1], valid_best=run.best[0], history=tuple(run.history),
        train_history=tuple(run.curve.points), train_tokens=recipe.steps * run.order.size * (train.shape[1] - 1),
        trained_parameters=sum(parameter.numel() for parameter in run.trained.values()),
        examples=recipe.steps * run.order.size, resumed_at=resumed_at, resume_note=run.resume_note,
    )  # fmt: skip


def _begin(run: Run, valid: np.ndarray, checkpoint: Checkpoint | None) -> int | None:
    """Bring the run to where it goes on: from a checkpoint, whose step is given, or from the start."""
    saved = None if checkpoint is None else checkpoint.read()
    if saved is None:
        run.evaluate(valid)
        return None
    run.restore(saved)
    return run.step


def _one_step(run: Run, valid: np.ndarray, checkpoint: Checkpoint | None) -> None:
    run.advance()
    if run.step in run.evaluated_at:
        run.evaluate(valid)
    if checkpoint is not None and (run.step == run.recipe.steps or checkpoint.due(run.step)):
        checkpoint.write(run.step, run.tensors(), run.state())


def _cancelled(run: Run, checkpoint: Checkpoint | None) -> Cancelled:
    """What to raise; the checkpoint is up to date then."""
    said = f"Training was cancelled at step {run.step + 1} of {run.recipe.steps}"
    if checkpoint is None:
        return Cancelled(f"{said}.")
    checkpoint.write(run.step, run.tensors(), run.state())
    return Cancelled(f"{said}; the same training with the checkpoint in {checkpoint.folder} goes on from there.")


@contextmanager
def _randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's random numbers as `seed` makes them, and afterwards as they were: dropout, routing and the like."""
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
