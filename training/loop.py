"""The optimisation loop: AdamW, accumulation, clipping, the best state by validation loss.

Learning rates are those of `Hyperparameters.learning_rate_at`. Called by the trainer of adapters and by the benchmark
of full fine-tuning. On the CPU the same seeds, data, number of threads and version of torch give the same bits, also
after a resume from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch

from registry.errors import Cancelled, InvalidParameter
from registry.progress import Progress, silent
from training.checkpoint import Checkpoint
from training.losses_file import LossesFile
from training.state import TrainingState


def optimise(
    state: TrainingState,
    *,
    progress: Progress = silent,
    should_stop: Callable[[], bool] | None = None,
    checkpoint: Checkpoint | None = None,
    losses: LossesFile | None = None,
) -> None:
    """Train the parameters that require gradients, and leave them in their best state by validation loss.

    The state before the first step counts too, so the result is never worse on the validation data than the start.
    With a `checkpoint` the training continues from it and saves itself in it; the caller discards it once the result
    is stored. `losses` is written as losses come.

    Raises InvalidParameter if nothing is trained, and with step and learning rate if the loss diverges; Cancelled when
    `should_stop` returns True; Conflict for the checkpoint of another training.
    """
    numbers = state.hyperparameters
    evaluated_at = numbers.evaluated_at()
    with nullcontext() if checkpoint is None else checkpoint.locked(), _randomness(numbers.data_seed, state.device):
        _begin(state, checkpoint)
        _write_losses(losses, state)
        while state.step < numbers.steps:
            if should_stop is not None and should_stop():
                raise _cancelled(state, checkpoint)
            try:
                state.advance()
                if state.step in evaluated_at:
                    state.evaluate()
            except InvalidParameter:  # the curve shall show the divergence
                _write_losses(losses, state)
                raise
            if checkpoint is not None and (state.step == numbers.steps or checkpoint.due(state.step)):
                checkpoint.write(state.step, state.tensors(), state.as_json())
            _write_losses(losses, state)
            progress(state.step, numbers.steps, _figures(state))
    state.keep_best()


def _begin(state: TrainingState, checkpoint: Checkpoint | None) -> None:
    """Restore a checkpoint, or else record the validation loss of the start."""
    saved = None if checkpoint is None else checkpoint.read()
    if saved is None:
        state.evaluate()
    else:
        state.restore(saved)


def _write_losses(losses: LossesFile | None, state: TrainingState) -> None:
    if losses is not None:
        losses.note(state)


def _figures(state: TrainingState) -> str:
    """The losses for progress messages: of this step's data, and of the validation data."""
    step, valid = state.history[-1]
    return f"loss {state.loss:.3f}, on validation {valid:.3f} (step {step}), best {state.best[0]:.3f}"


def _cancelled(state: TrainingState, checkpoint: Checkpoint | None) -> Cancelled:
    """Save the checkpoint of a cancelled training, and return its error."""
    message = f"Training was cancelled at step {state.step + 1} of {state.hyperparameters.steps}"
    if checkpoint is None:
        return Cancelled(f"{message}.")
    checkpoint.write(state.step, state.tensors(), state.as_json())
    return Cancelled(f"{message}; the same training with the checkpoint in {checkpoint.folder} continues from there.")


@contextmanager
def _randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random numbers (dropout, routing) while open, and restore them afterwards."""
    devices = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
