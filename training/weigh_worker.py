"""What a process that weighs adapters does: loads a base model, reads weights from a blob store, and answers.

Run by the server under the module `service.jobs.weigh_process`.
"""

from __future__ import annotations

from pathlib import Path

import torch

from registry.adapters.loadable import Tensors
from registry.adapters.weights import load_tensors
from registry.base_model import load_base
from registry.blobs import LocalBlobs
from registry.progress import Progress
from registry.spec import BaseEntry, Frozen, StoredAdapter, WeighingRequest
from training.coefficients import weigh
from training.process import Handle, Json


class WeighSetup(Frozen):
    """The first line: the base model, where its fingerprint and where blobs are kept, and threads of torch."""

    entry: BaseEntry
    cache: Path
    blobs: Path
    threads: int | None = None


def begin(setup: Json) -> Handle:
    """What answers a request, on the base model and the blobs of the first line; raises what a weighing does."""
    given = WeighSetup.model_validate(setup)
    if given.threads is not None:
        torch.set_num_threads(given.threads)
    blobs = LocalBlobs(given.blobs)

    def load(stored: StoredAdapter) -> Tensors:
        return load_tensors(blobs.read(stored.blob))

    def handle(request: Json, progress: Progress) -> Json:
        asked = WeighingRequest.model_validate(request)
        progress(0, 1, "loading the base model")
        base = load_base(given.entry, cache_dir=given.cache)
        return weigh(base, asked, load, progress=progress).model_dump(mode="json")

    return handle
