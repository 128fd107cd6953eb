"""What a process that computes gradients for a cook does: weighs adapters, tunes a soup, or measures an ingredient.

It loads a base model, and reads and writes weights in a blob store. Run by the server under the module
`service.jobs.gradient_process`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from registry.adapters.loadable import Tensors
from registry.adapters.weights import load_tensors, passing, save_tensors
from registry.base_model import LoadedBase, load_base
from registry.blobs import open_blobs
from registry.names import sha256_digest
from registry.progress import Progress
from registry.spec import BaseEntry, BlobPlace, Frozen, StatisticRequest, StoredAdapter, TuningRequest, WeighingRequest
from training.coefficients import weigh
from training.known import Known
from training.process import Handle, Json
from training.statistics import measure
from training.tuning import tune


class GradientSetup(Frozen):
    """The first line: the base model, where its fingerprint and where blobs are kept, and threads of torch."""

    entry: BaseEntry
    cache: Path
    blobs: BlobPlace
    threads: int | None = None


class WeighingTask(Frozen):
    """Weigh adapters; answered with a Weighing."""

    do: Literal["weigh"] = "weigh"
    request: WeighingRequest


class TuningTask(Frozen):
    """Tune a soup; answered with a Tuned, whose blob is there when the answer comes."""

    do: Literal["tune"] = "tune"
    request: TuningRequest


class StatisticTask(Frozen):
    """Compute a statistic; answered with a MeasuredStatistic, whose bytes are in `file` when the answer comes.

    `file` is there already, and its owner's to store and to remove: who is stopped has then left no blob behind.
    """

    do: Literal["measure"] = "measure"
    request: StatisticRequest
    file: Path


def begin(setup: Json) -> Handle:
    """What answers tasks, on the base model and the blobs of the first line; raises what their work does."""
    given = GradientSetup.model_validate(setup)
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    blobs = open_blobs(given.blobs, make=False)

    def load(stored: StoredAdapter) -> Tensors:
        return load_tensors(blobs.read(stored.blob))

    def keep(tensors: Mapping[str, Tensor]) -> str:
        return blobs.put_bytes(passing(tensors))

    loaded: list[LoadedBase] = []
    known = Known()

    def handle(task: Json, progress: Progress) -> Json:
        if not loaded:
            progress(0, 1, "loading the base model")
            loaded.append(load_base(given.entry, cache_dir=given.cache))
        try:
            return done(loaded[0], task, progress)
        finally:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()  # what the task took is the engine's again; the base model stays

    def done(base: LoadedBase, task: Json, progress: Progress) -> Json:
        if task["do"] == "weigh":
            weighing = WeighingTask.model_validate(task)
            found = weigh(base, weighing.request, load, known=known, progress=progress)
            return found.model_dump(mode="json")
        if task["do"] == "measure":
            asked = StatisticTask.model_validate(task)
            into = partial(_write, asked.file)
            return measure(base, asked.request, load, into, progress=progress).model_dump(mode="json")
        tuning = TuningTask.model_validate(task)
        return tune(base, tuning.request, load, keep, progress=progress).model_dump(mode="json")

    return handle


def _write(file: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors to a file that is there; gives the digest of its bytes."""
    data = save_tensors(tensors)
    with file.open("r+b") as opened:
        opened.write(data)
    return sha256_digest(data)
