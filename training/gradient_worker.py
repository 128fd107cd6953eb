"""The child process that computes gradients for a cook: weighs adapters, tunes a soup, or measures an ingredient.

It loads a base model and reads weights from a blob store. Run by the server under the module
`service.jobs.gradient_process`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from registry.adapters.loadable import Tensors
from registry.adapters.weights import load_tensors, save_tensors, save_unique
from registry.base_model import LoadedBase, load_base
from registry.blobs import open_blobs
from registry.names import sha256_digest
from registry.progress import Progress
from registry.spec import BaseEntry, BlobPlace, Frozen, StatisticRequest, StoredAdapter, TuningRequest, WeighingRequest
from training.coefficients import weigh
from training.process import Handle, Json
from training.score_cache import ScoreCache
from training.statistics import measure
from training.tuning import tune


class GradientSetup(Frozen):
    """The first line of input: the base model, the folder of its fingerprint, the blob store, torch's threads, and the
    lowest level that the process logs.
    """

    entry: BaseEntry
    cache: Path
    blobs: BlobPlace
    threads: int | None = None
    log_level: str = "info"


class WeighingTask(Frozen):
    """Weigh adapters; answered with a Weighing."""

    do: Literal["weigh"] = "weigh"
    request: WeighingRequest


class TuningTask(Frozen):
    """Tune a soup; answered with a Tuned, whose tensors, if any, are then in `file`, as for a StatisticTask."""

    do: Literal["tune"] = "tune"
    request: TuningRequest
    file: Path


class StatisticTask(Frozen):
    """Compute a statistic; answered with a MeasuredStatistic, whose bytes are then in `file`.

    The parent creates `file`, stores its content and removes it, so that a killed child leaves no blob behind.
    """

    do: Literal["measure"] = "measure"
    request: StatisticRequest
    file: Path


class _GradientTasks:
    """Runs tasks on one base model, loaded at the first, with a cache of what weighing computed."""

    def __init__(self, setup: GradientSetup) -> None:
        self._setup = setup
        self._blobs = open_blobs(setup.blobs, make=False)
        self._cache = ScoreCache()
        self._base: LoadedBase | None = None

    def handle(self, task: Json, progress: Progress) -> Json:
        """Run one task; raises what its work does."""
        if self._base is None:
            progress(0, 1, "loading the base model")
            self._base = load_base(self._setup.entry, cache_dir=self._setup.cache)
        try:
            return self._run(self._base, task, progress).model_dump(mode="json")
        finally:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # returns the task's memory to the engine; the base model stays

    def _run(self, base: LoadedBase, task: Json, progress: Progress) -> Frozen:
        if task["do"] == "weigh":
            weighing = WeighingTask.model_validate(task)
            return weigh(base, weighing.request, self._load, cache=self._cache, progress=progress)
        if task["do"] == "measure":
            measuring = StatisticTask.model_validate(task)
            return measure(
                base, measuring.request, self._load, partial(_write, measuring.file, save_tensors), progress=progress
            )
        tuning = TuningTask.model_validate(task)
        return tune(base, tuning.request, self._load, partial(_write, tuning.file, save_unique), progress=progress)

    def _load(self, stored: StoredAdapter) -> Tensors:
        return load_tensors(self._blobs.read(stored.blob))


def begin(setup: Json) -> Handle:
    """Return the handler of tasks, on the base model and the blobs of the first line."""
    checked = GradientSetup.model_validate(setup)
    if checked.threads is not None:
        torch.set_num_threads(checked.threads)
    return _GradientTasks(checked).handle


def _write(file: Path, save: Callable[[Mapping[str, Tensor]], bytes], tensors: Mapping[str, Tensor]) -> str:
    """Write tensors to an existing file; return the digest of its bytes."""
    data = save(tensors)
    with file.open("r+b") as handle:
        handle.write(data)
    return sha256_digest(data)
