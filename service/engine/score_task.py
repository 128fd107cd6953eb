"""Scores samples by an engine as a task: what a matrix of adapters by domains is made of on other machines.

The engine is a server's, with no other requests in it, so that texts are cut and computed as they are there.
"""

from __future__ import annotations

from functools import lru_cache

from registry import cores
from registry.adapters.loadable import LoadableAdapter
from registry.adapters.weights import load_tensors
from registry.base_model.fingerprint import check_fingerprint
from registry.evaluate.matrix import ToScore
from registry.spec import BaseEntry, PassageScore
from registry.tasks.task import Watch
from service.engine.bases import AllowedBases
from service.engine.engine import Engine


def score_samples(given: ToScore, watch: Watch) -> list[list[PassageScore]]:
    """Log-likelihoods of each sample's texts, which tasks share; raises as `engine_of`, and Cancelled when stopped."""
    engine = engine_of(given.entry, given.fingerprint, given.threads)
    adapter = None
    if given.adapter is not None:
        digest, config, weights = given.adapter
        adapter = LoadableAdapter(digest, config, lambda: load_tensors(weights), len(weights))
    return [
        engine.score(given.entry.id, watch.shared[sample], adapter, should_stop=watch.should_stop, patient=True)
        for sample in given.samples
    ]


def engine_of(entry: BaseEntry, fingerprint: str, threads: int) -> Engine:
    """An engine with the base model, started once a process; raises Unavailable where the model is not there."""
    bases, engine = _started(entry, threads)
    check_fingerprint(entry, bases.shape(entry.id).fingerprint, expected=fingerprint)
    return engine


@lru_cache(maxsize=1)
def _started(entry: BaseEntry, threads: int) -> tuple[AllowedBases, Engine]:
    cores.use_one_each(threads)
    bases = AllowedBases({entry.id: entry}, None)
    engine = Engine(bases)
    engine.start()
    return bases, engine
