"""A kind of job as the runner and the routes know it (`JobKind`), and what a job gets when it runs (`JobContext`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from registry.catalogue import Catalogue
from registry.catalogue.rows import JobRow, Namespaces, SelectorRow
from registry.context import Caller
from registry.cook.job import Workers
from registry.progress import Progress
from registry.spec import (
    MeasuredStatistic,
    PoolSpec,
    SelectorSpec,
    StatisticRequest,
    Tuned,
    TuningRequest,
    Weighing,
    WeighingRequest,
)
from service.jobs.fit_process import FitProcess
from service.jobs.gradient_process import GradientProcess
from service.parts import Services
from service.settings import Settings

Lane = Literal["quick", "embed", "fit", "search", "evaluate", "training"]


@dataclass(frozen=True)
class JobContext:
    """What a running job gets: the server's services, its row, and `progress`, which raises when it is cancelled."""

    services: Services
    fitting: FitProcess
    computing: GradientProcess
    row: JobRow
    progress: Progress

    @property
    def caller(self) -> Caller:
        """On whose behalf a cook or a training works."""
        arguments = self.row.arguments
        return Caller(self.row.created_by, namespaces_of(arguments["scope"]), arguments["request_id"])

    def fit(self, pool: PoolSpec, spec: SelectorSpec, encoder_digest: str | None) -> SelectorRow:
        """Fit a pool in the process for it, as part of this job."""
        return self.fitting.fit(pool, spec, encoder_digest, progress=self.progress)

    @property
    def workers(self) -> Workers:
        """Fits, weighing, tuning and statistics in the processes for them, as part of this job."""

        def weigh(base_id: str, request: WeighingRequest) -> Weighing:
            return self.computing.weigh(self.services.bases[base_id].entry, request, progress=self.progress)

        def tune(base_id: str, request: TuningRequest) -> Tuned:
            return self.computing.tune(self.services.bases[base_id].entry, request, progress=self.progress)

        def measure(base_id: str, request: StatisticRequest) -> MeasuredStatistic:
            return self.computing.measure(self.services.bases[base_id].entry, request, progress=self.progress)

        return Workers(self.fit, weigh, tune, measure)


@dataclass(frozen=True)
class JobKind:
    """One kind of job. Jobs of one `lane` keep only each other waiting: a training takes hours, a fit minutes.

    `run` does it; `ended_without` is told, in the transaction that ends it, that there will be no result; `clean`
    removes what only the job needed, and may be called again; `reach` is the namespaces it works on (None: all);
    `reached` is how far what it has saved has come, where it goes on from there; `upkeep` says of one that it keeps
    what is stored in order, whoever was the reason: it is done also where the key of that one is revoked.
    """

    run: Callable[[JobContext], dict[str, Any]]
    reach: Callable[[JobRow], Namespaces]
    ended_without: Callable[[Catalogue, JobRow], None] = lambda _catalogue, _row: None
    clean: Callable[[Services, JobRow], None] = lambda _services, _row: None
    lane: Lane = "quick"
    reached: Callable[[Services, JobRow], int] = lambda _services, _row: 0
    upkeep: Callable[[JobRow], bool] = lambda _row: False


def workers_of(settings: Settings) -> dict[Lane, int]:
    """How many jobs of each lane run at once; fits and searches one by one, in the one process for each.

    A server that only answers (`SOUP_ROLE=api`) runs none, whatever the other settings say.
    """
    if settings.role == "api":
        return dict.fromkeys(get_args(Lane), 0)
    quick, one = settings.job_workers, min(settings.job_workers, 1)
    return {
        "quick": quick,
        "embed": quick,
        "fit": one,
        "search": one,
        "evaluate": one,
        "training": settings.training_workers,
    }


def namespaces_of(found: Sequence[str] | None) -> Namespaces:
    """Namespaces as a job's arguments hold them."""
    return None if found is None else tuple(found)
