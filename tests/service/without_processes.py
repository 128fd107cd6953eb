"""Work of servers done in their own process, not in one beside: for tests to which it makes no difference where.

A process takes as long to start as dozens of such tests, and nearly every server of the tests would have one that
fits. What the processes are for (cancelled, killed, refused to start, told no password) is tested where servers are
opened with `processes`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import pytest

from registry.base_model import LoadedBase
from registry.blobs import open_blobs
from registry.catalogue.database import Database
from registry.catalogue.rows import SelectorRow
from registry.context import Registry
from registry.progress import Progress
from registry.select.fit import fit
from registry.spec import BaseEntry, PoolSpec, SelectorSpec
from service.jobs import train
from service.jobs.fit_process import FitProcess
from service.jobs.gradient_process import GradientProcess
from service.jobs.train_process import unnamed
from service.settings import Settings
from training.gradient_worker import GradientSetup, begin
from training.process import Handle, Json
from training.worker import WorkerRequest, WorkerSetup, answer

InChild = Callable[..., Json]
"""A function that trains for a job."""


class FitsHere(FitProcess):
    """One fit at a time, as the process does them, in the thread of the job."""

    def __init__(self, database: Database, settings: Settings) -> None:
        super().__init__(database, settings)
        self._place = settings.blob_place

    @cached_property
    def _registry(self) -> Registry:
        return Registry(self._database, open_blobs(self._place, make=False))

    def fit(self, pool: PoolSpec, spec: SelectorSpec, encoder_digest: str | None, *, progress: Progress) -> SelectorRow:
        """The stored selector; raises what the fit or `progress` does."""
        with self._lock:
            return fit(self._registry, pool, spec, encoder_digest=encoder_digest, progress=progress)


class ComputesHere(GradientProcess):
    """One task at a time, as the process does them, on a base model of its own, in the thread of the job."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._begun: dict[str, Handle] = {}

    def _run(self, entry: BaseEntry, task: Json, progress: Progress) -> Json:
        settings = self._settings
        setup = GradientSetup(entry=entry, cache=settings.cache, blobs=settings.blob_place, threads=settings.threads)
        with self._lock:
            if entry.id not in self._begun:
                self._begun[entry.id] = begin(setup.model_dump(mode="json"))
            return self._begun[entry.id](task, progress)


def trains_here(patch: pytest.MonkeyPatch, base: LoadedBase) -> InChild:
    """Have trainings done in the thread of their job, on `base`, until `patch` is undone; gives what does them."""

    def done(setup: WorkerSetup, request: WorkerRequest, *, progress: Progress, private: Path) -> Json:
        with unnamed(private):
            return answer(request, base, progress)

    patch.setattr("training.worker.should_end", lambda: False)
    patch.setattr(train, "in_child", done)
    return done
