"""The contract of a job: its kind, for the runner and the routes (`JobKind`), and its run (`JobContext`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

from registry.catalogue import Catalogue
from registry.catalogue.rows import JobRow, Namespaces, SelectorRow
from registry.context import Caller
from registry.cook.job import Computations
from registry.progress import Progress
from registry.spec import PoolSpec, SelectorSpec
from service.jobs.fit_process import FitProcess
from service.jobs.gradient_process import GradientProcess
from service.services import Services
from service.settings import Settings

Lane = Literal["quick", "embed", "fit", "search", "evaluate", "training"]


@dataclass(frozen=True)
class JobContext:
    """The context of a running job: the server's services, its row, and `progress`, which raises if it is cancelled."""

    services: Services
    fitting: FitProcess
    computing: GradientProcess
    row: JobRow
    progress: Progress

    @property
    def caller(self) -> Caller:
        """The caller on whose behalf a cook or a training runs."""
        arguments = self.row.arguments
        return Caller(self.row.created_by, namespaces_of(arguments["scope"]), arguments["request_id"])

    def fit(self, pool: PoolSpec, spec: SelectorSpec, encoder_digest: str | None) -> SelectorRow:
        """Fit a pool in the fit process, as part of this job."""
        return self.fitting.fit(pool, spec, encoder_digest, progress=self.progress)

    @property
    def computations(self) -> Computations:
        """Fits, weighing, tuning and statistics in their child processes, as part of this job."""
        return Computations(
            self.fit,
            partial(self.computing.weigh, progress=self.progress),
            partial(self.computing.tune, progress=self.progress),
            partial(self.computing.measure, progress=self.progress),
        )


@dataclass(frozen=True)
class JobKind:
    """One kind of job. Jobs wait only for jobs of the same `lane`: a training takes hours, a fit minutes.

    `run` does the work. `on_unsuccessful_end` is called in the transaction that ends a job without a result. `clean`
    removes files that only the job needed, and may be called twice. `reach` returns the namespaces it works on (None:
    all), `reached` the progress of its saved state, if it resumes from one.
    """

    run: Callable[[JobContext], dict[str, Any]]
    reach: Callable[[JobRow], Namespaces]
    on_unsuccessful_end: Callable[[Catalogue, JobRow], None] = lambda _catalogue, _row: None
    clean: Callable[[Services, JobRow], None] = lambda _services, _row: None
    lane: Lane = "quick"
    reached: Callable[[Services, JobRow], int] = lambda _services, _row: 0


def workers_of(settings: Settings) -> dict[Lane, int]:
    """How many jobs of each lane run at once; fits and searches one by one, as each has one process.

    A server that only answers (`SOUP_ROLE=api`) runs none, whatever the other settings.
    """
    if settings.role == "api":
        return dict.fromkeys(get_args(Lane), 0)
    workers = settings.job_workers
    return {
        "quick": workers,
        "embed": workers,
        "fit": min(workers, 1),
        "search": min(workers, 1),
        "evaluate": min(workers, 1),
        "training": settings.training_workers,
    }


def namespaces_of(names: Sequence[str] | None) -> Namespaces:
    """Namespaces from a job's arguments (JSON)."""
    return None if names is None else tuple(names)
