"""What /metrics says of the server beside requests and the engine: jobs, blobs, disk, keys, readiness.

Found when the metrics are asked for, in a few cheap queries; sums over all blobs are kept for a minute. Each part
stands alone: one that cannot be found out is left out, counted and logged, and the others are there.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from registry.errors import SoupError
from service.http.readiness import Readiness
from service.jobs.kinds import KINDS
from service.parts import Parts

log = logging.getLogger("service.metrics")

BLOBS_SECONDS = 60.0
"""How long sums over all blobs are kept."""


class ServerMetrics(Collector):
    """The parts of one server, there once it has started, as metrics; `clock` is the tests' seam for time."""

    def __init__(
        self, parts: Callable[[], Parts], readiness: Readiness, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._of = parts
        self._readiness = readiness
        self._clock = clock
        self._blobs: tuple[float, list[Metric]] | None = None
        self._failed = dict.fromkeys(("jobs", "blobs", "disk", "keys"), 0)

    @property
    def _parts(self) -> Parts:
        return self._of()

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are known by `collect`, which is not to run before the server has started."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Everything that can be found out now."""
        yield from self._ends()
        yield from self._ready()
        for part, found in (
            ("jobs", self._queue), ("blobs", self._stored), ("disk", self._disk), ("keys", self._keys),
        ):  # fmt: skip
            try:
                yield from list(found())
            except (SoupError, OSError) as error:
                self._failed[part] += 1
                log.warning("the metrics lack %s (%s)", part, type(error).__name__)
        failed = CounterMetricFamily(
            "soup_metrics_failures", "Parts of the metrics that were left out.", labels=("part",)
        )
        for part, count in self._failed.items():
            failed.add_metric((part,), count)
        yield failed

    def _ends(self) -> Iterator[Metric]:
        ended = CounterMetricFamily(
            "soup_jobs_ended", "Tries of jobs by what came of them here, with the code of an error.",
            labels=("kind", "outcome", "code"),
        )  # fmt: skip
        took = SummaryMetricFamily("soup_job_seconds", "Seconds that tries of jobs took here.", labels=("kind",))
        figures = self._parts.jobs.tally.figures()
        for kind in KINDS:
            one = figures.get(kind)
            took.add_metric((kind,), 0 if one is None else one.tries, 0.0 if one is None else one.seconds)
            for (outcome, code), count in () if one is None else one.ends.items():
                ended.add_metric((kind, outcome, code), count)
        yield from (ended, took)

    def _ready(self) -> Iterator[Metric]:
        """The last answer of /readyz: asking for metrics computes no token."""
        last = self._readiness.last
        if last is not None:
            yield GaugeMetricFamily("soup_ready", "Whether /readyz said ready last.", value=last.status == "ready")

    def _queue(self) -> Iterator[Metric]:
        kind = ("kind",)
        queued = GaugeMetricFamily("soup_jobs_queued", "Jobs that wait, of all servers of the database.", labels=kind)
        running = GaugeMetricFamily("soup_jobs_running", "Jobs that run, of all servers of the database.", labels=kind)
        oldest = GaugeMetricFamily(
            "soup_jobs_oldest_queued_seconds", "How long ago the oldest job that waits was to be begun.", labels=kind
        )
        with self._parts.registry.database.read() as catalogue:
            found = catalogue.jobs.queue()
        moment = datetime.now(UTC)
        for name in KINDS:
            waiting, since, at_work = found.get(name, (0, None, 0))
            queued.add_metric((name,), waiting)
            running.add_metric((name,), at_work)
            oldest.add_metric((name,), 0.0 if since is None else max(0.0, (moment - since).total_seconds()))
        yield from (queued, running, oldest)

    def _stored(self) -> list[Metric]:
        if self._blobs is not None and self._clock() - self._blobs[0] < BLOBS_SECONDS:
            return self._blobs[1]
        with self._parts.registry.database.read() as catalogue:
            count, size = catalogue.blobs.total()
            going = len(catalogue.removals.pending())
        found: list[Metric] = [
            GaugeMetricFamily("soup_blobs", "Stored blobs.", value=count),
            GaugeMetricFamily("soup_blob_bytes", "Bytes of stored blobs.", value=size),
            GaugeMetricFamily("soup_blobs_to_remove", "Blobs whose files are to go.", value=going),
        ]
        self._blobs = self._clock(), found
        return found

    def _disk(self) -> Iterator[Metric]:
        free = GaugeMetricFamily("soup_disk_free_bytes", "Bytes free where a folder lies.", labels=("folder",))
        total = GaugeMetricFamily("soup_disk_bytes", "Bytes of the disk where a folder lies.", labels=("folder",))
        folders: dict[str, Path] = {"data": self._parts.settings.data, "blobs": self._parts.settings.blobs_dir}
        for name, folder in folders.items():
            usage = shutil.disk_usage(folder)
            free.add_metric((name,), usage.free)
            total.add_metric((name,), usage.total)
        yield from (free, total)

    def _keys(self) -> Iterator[Metric]:
        keys = GaugeMetricFamily("soup_keys", "Keys by what they are now.", labels=("state",))
        moment = datetime.now(UTC)
        with self._parts.registry.database.read() as catalogue:
            rows = catalogue.keys.list()
        revoked = sum(row.revoked_at is not None for row in rows)
        expired = sum(row.revoked_at is None and row.is_expired(moment) for row in rows)
        for state, count in (("active", len(rows) - revoked - expired), ("expired", expired), ("revoked", revoked)):
            keys.add_metric((state,), count)
        yield keys
