"""Run one training from files to directories: spec -> build (config, start, data) -> trainer -> loop.

Called by `soup train`, by each cell of a grid, and by the process that trains for a server. The result is a directory
to push, and for a bank of experts a second one with the bank beside its merge.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from registry.base_model import BaseText, LoadedBase
from registry.progress import Progress, silent
from training.build import inputs_of, read_items, read_member
from training.checkpoint import Saving, discard
from training.data import Data, draw, held_out
from training.inputs import TrainingInputs
from training.request import TrainingRun
from training.spec import FusionRequest
from training.trainer import Trained, train_adapter


def train(
    run: TrainingRun,
    base: LoadedBase,
    *,
    data: Data | None = None,
    progress: Progress = silent,
    should_stop: Callable[[], bool] | None = None,
) -> Trained:
    """Train and write the results; returns the adapter written to `out`.

    `data` are the files' items if the caller has read them already. The checkpoint is removed at the end. Raises as
    `inputs_of`, `train_adapter` and `check_bank` do, and Conflict if `out` exists.
    """
    inputs = inputs_for(run, base, read_data(run) if data is None else data)
    check_bank(run, base, inputs)
    saving = None if run.checkpoint is None else Saving(run.checkpoint, run.every_steps, run.every_seconds)
    trained = train_adapter(base, inputs, progress=progress, should_stop=should_stop, saving=saving, losses=run.losses)
    sample = draw([inputs.task.text_of(item) for item in inputs.data.train], run.sample, seed=run.sample_seed)
    if trained.config.merged is not None:
        check_bank(run, base, inputs)  # again: a training takes its time
        trained.write(run.bank, base, domain=run.domain, base_id=run.base_id, passages=sample, replace=True)
        trained = trained.merged()
    trained.write(run.out, base, domain=run.domain, base_id=run.base_id, passages=sample, replace=run.replace)
    if run.checkpoint is not None:
        discard(run.checkpoint)
    return trained


def read_data(run: TrainingRun) -> Data:
    """Read the items to train and to validate on; raises NotFound or InvalidParameter with the line that is wrong."""
    train, valid = run.called or (None, None)
    items = read_items(run.spec, run.train, where=train)
    if run.valid is None:
        return held_out(items, run.valid_share)
    return Data(items, read_items(run.spec, run.valid, where=valid))


def inputs_for(run: TrainingRun, base: BaseText, data: Data) -> TrainingInputs:
    """Build the inputs of a run, reading the members of a fusion from their directories."""
    paths = run.spec.adapter.members if isinstance(run.spec.adapter, FusionRequest) else ()
    members = [read_member(path, base.shape) for path in run.members or map(Path, paths)]
    return inputs_of(run.spec, base, data, members=members)


def check_bank(run: TrainingRun, base: BaseText, inputs: TrainingInputs) -> None:
    """Raise Conflict if the place of the bank holds another one than this training's, unless `replace`.

    A bank of this very training is left from a crash before its merge was written: `out` decides.
    """
    folder = None if run.spec.adamix is None or run.replace else run.existing_bank()
    if folder is not None:
        inputs.refuse_another(folder, base, of_bank=True, advice="Remove it, or choose another place.")
