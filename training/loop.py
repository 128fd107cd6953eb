"""The optimisation loop: AdamW, warm-up and decay, accumulation, clipping, the best state by validation loss.

Called by the trainer of adapters and by the demo's training of its base model. On the CPU the same seeds, data,
number of threads and version of torch give the same bits, also where a checkpoint was gone on from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from registry.errors import Cancelled, InvalidParameter
from registry.progress import Progress, silent
from training.checkpoint import Checkpoint
from training.losses_file import LossesFile
from training.state import TrainingState


@dataclass(frozen=True)
class Outcome:
    """What a loop did: validation loss (mean NLL in nats) before the first step and at its best, and on the way.

    `train_history` holds about a hundred (step, mean training loss since the one before). `resumed_at` is the step
    after which a checkpoint was gone on from, None where there was none; it has no influence on all else.
    `resume_note` says where what may decide the last bits was another when that checkpoint was written, and
    `made_with` what it was, in every part of the training.
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
    made_with: tuple[Mapping[str, Any], ...] = ()


def optimise(
    state: TrainingState,
    *,
    progress: Progress = silent,
    should_stop: Callable[[], bool] | None = None,
    checkpoint: Checkpoint | None = None,
    losses: LossesFile | None = None,
) -> Outcome:
    """Train the parameters that require gradients, and leave them in their best state by validation loss.

    The state before the first step takes part, so the outcome is never worse on the validation data than doing
    nothing. With a `checkpoint` the training goes on from what it holds, and saves itself in it; it is there still at
    the end, for whoever stores the result to discard. `losses` is told of the state again and again.

    Raises InvalidParameter where nothing is trained, and with step and learning rate where the loss diverges;
    Cancelled when `should_stop` says so; Conflict for the checkpoint of another training.
    """
    numbers = state.hyperparameters
    evaluated_at = numbers.evaluated_at()
    with nullcontext() if checkpoint is None else checkpoint.held(), _randomness(numbers.data_seed, state.device):
        resumed_at = _begin(state, checkpoint)
        _note(losses, state)
        while state.step < numbers.steps:
            if should_stop is not None and should_stop():
                raise _cancelled(state, checkpoint)
            try:
                state.advance()
                if state.step in evaluated_at:
                    state.evaluate()
            except InvalidParameter:  # its last losses are what shows that it diverged
                _note(losses, state)
                raise
            if checkpoint is not None and (state.step == numbers.steps or checkpoint.due(state.step)):
                checkpoint.write(state.step, state.tensors(), state.as_json())
            _note(losses, state)
            progress(state.step, numbers.steps, _figures(state))
    state.keep_best()
    examples = numbers.steps * state.order.size
    return Outcome(
        best_step=state.best[1], valid_before=state.history[0][1], valid_best=state.best[0],
        history=tuple(state.history), train_history=tuple(state.curve.points),
        train_tokens=examples * (state.train.shape[1] - 1), examples=examples,
        trained_parameters=sum(parameter.numel() for parameter in state.trained.values()),
        resumed_at=resumed_at, resume_note=state.resume_note, made_with=tuple(state.made()),
    )  # fmt: skip


def _begin(state: TrainingState, checkpoint: Checkpoint | None) -> int | None:
    """Go on from a checkpoint, whose step is given, or take the validation loss of the start."""
    saved = None if checkpoint is None else checkpoint.read()
    if saved is None:
        state.evaluate()
        return None
    state.restore(saved)
    return state.step


def _note(losses: LossesFile | None, state: TrainingState) -> None:
    if losses is not None:
        losses.note(state)


def _figures(state: TrainingState) -> str:
    """The losses of a training as its progress says them: of this step's data, and of validation data."""
    at, valid = state.history[-1]
    return f"loss {state.loss:.3f}, on validation {valid:.3f} (step {at}), best {state.best[0]:.3f}"


def _cancelled(state: TrainingState, checkpoint: Checkpoint | None) -> Cancelled:
    """The error of a cancelled training, whose checkpoint is brought up to date here."""
    said = f"Training was cancelled at step {state.step + 1} of {state.hyperparameters.steps}"
    if checkpoint is None:
        return Cancelled(f"{said}.")
    checkpoint.write(state.step, state.tensors(), state.as_json())
    return Cancelled(f"{said}; the same training with the checkpoint in {checkpoint.folder} goes on from there.")


@contextmanager
def _randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's random numbers as `seed` makes them, and afterwards as they were: dropout, routing and the like."""
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
