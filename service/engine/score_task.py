"""Scores samples as a task, for a matrix of adapters by domains: in worker processes, or on other machines.

Uses the engine of a server, without other requests, so that texts are cut and computed as they are there.
"""

from __future__ import annotations

from functools import lru_cache

from registry.adapters.loadable import LoadableAdapter
from registry.adapters.weights import load_tensors
from registry.base_model.fingerprint import check_fingerprint
from registry.evaluate.matrix import ToScore
from registry.spec import BaseEntry, PassageScore
from registry.tasks.task import Watch
from service.engine.bases import AllowedBases
from service.engine.engine import Engine
from service.engine.limits import EngineLimits


def score_samples(job: ToScore, watch: Watch) -> list[list[PassageScore]]:
    """Log-likelihoods of each sample's texts, which tasks share; raises as `engine_of`, and Cancelled when stopped."""
    engine = engine_of(job.entry, job.fingerprint, job.threads)
    adapter = None
    if job.adapter is not None:
        digest, config, weights = job.adapter
        adapter = LoadableAdapter(digest, config, lambda: load_tensors(weights), len(weights))
    return [
        engine.score(job.entry.id, watch.shared[sample], adapter, progress=watch.raise_if_stopped, patient=True)
        for sample in job.samples
    ]


def engine_of(entry: BaseEntry, fingerprint: str, threads: int) -> Engine:
    """Return this process's engine with the base model; raises Unavailable if the model cannot be loaded."""
    bases, engine = _start_engine(entry, threads)
    check_fingerprint(entry, bases.shape(entry.id).fingerprint, expected=fingerprint)
    return engine


@lru_cache(maxsize=1)
def _start_engine(entry: BaseEntry, threads: int) -> tuple[AllowedBases, Engine]:
    bases = AllowedBases({entry.id: entry}, None)
    engine = Engine(bases, EngineLimits(threads=threads))
    engine.start()
    return bases, engine
