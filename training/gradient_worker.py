"""The child process that computes gradients for a cook: weighs adapters, tunes a soup, or measures an ingredient.

It loads a base model and reads weights from a blob store. Run by the server under the module
`service.jobs.gradient_process`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

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


class _GradientTasks:
    """Runs tasks on one base model, loaded at the first, with a cache of what weighing computed.

    A task says what to `do`: `weigh`, `tune` or `measure`, with a `request`. The last two write tensors, if there are
    any, to `file`, which the parent creates, stores and removes, so that a killed child leaves no blob behind.
    """

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
            weighing = WeighingRequest.model_validate(task["request"])
            return weigh(base, weighing, self._load, cache=self._cache, progress=progress)
        file = Path(task["file"])
        if task["do"] == "measure":
            measuring = StatisticRequest.model_validate(task["request"])
            return measure(base, measuring, self._load, partial(_write, file, save_tensors), progress=progress)
        tuning = TuningRequest.model_validate(task["request"])
        return tune(base, tuning, self._load, partial(_write, file, save_unique), progress=progress)

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
