"""Scoring samples by an engine as a piece of work: what a matrix of adapters by domains is made of elsewhere.

The engine is a server's, with nobody else's requests in it, so that texts are cut and computed as they are there.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path

from registry import cores
from registry.adapters.loadable import LoadableAdapter
from registry.adapters.weights import load_tensors
from registry.base_model.same_files import check_same, named_machine
from registry.cross_evaluate import ToScore
from registry.errors import Incompatible, Unavailable
from registry.pieces import MachineProblem, Watch, own_folder
from registry.spec import BaseEntry, PassageScore
from service.engine.bases import AllowedBases
from service.engine.engine import Engine


def score_samples(given: ToScore, watch: Watch) -> list[list[PassageScore]]:
    """Log-likelihoods of each sample's texts, which pieces share; raises as `engine_of`.

    Raises Cancelled where it is asked to stop.
    """
    entry = given.entry
    engine = engine_of(entry, given.fingerprint, given.threads)
    with named_machine():
        adapter = None
        if given.adapter is not None:
            digest, config, weights = given.adapter
            adapter = LoadableAdapter(digest, config, lambda: load_tensors(weights), len(weights))
        found = []
        for number, sample in enumerate(given.samples):
            watch.progress(number, len(given.samples), "scoring the samples")
            texts = watch.shared[sample]
            found.append(engine.score(entry.id, texts, adapter, should_stop=watch.should_stop, patient=True))
    return found


def engine_of(entry: BaseEntry, fingerprint: str, threads: int) -> Engine:
    """An engine with the base model, made once a process; raises MachineProblem with this machine's name.

    That is where the base model is not there or has another fingerprint, and where no folder can be made.
    """
    try:
        with named_machine():
            scoring = _scoring(entry.model_dump_json(), threads)
        check_same(entry, scoring.fingerprint, wanted=fingerprint)
    except (Unavailable, Incompatible) as problem:
        raise MachineProblem(problem) from problem
    return scoring.engine


class _Scoring:
    """An engine for one base model, on so many threads, and the fingerprint of the files it has."""

    def __init__(self, entry: BaseEntry, threads: int) -> None:
        cores.one_each(threads)
        with ExitStack() as made:
            cache = made.enter_context(own_folder("soup-score-"))
            bases = AllowedBases({entry.id: entry}, Path(cache))
            self.fingerprint = bases.shape(entry.id).fingerprint
            self.engine = Engine(bases)
            self.engine.start()
            self._cache = made.pop_all()  # stays as long as the process


@lru_cache(maxsize=1)
def _scoring(entry_json: str, threads: int) -> _Scoring:
    """Made once a process."""
    return _Scoring(BaseEntry.model_validate_json(entry_json), threads)
