"""Prometheus metrics of the server beside requests and the engine: jobs, blobs, disk, keys, readiness.

Computed in a few queries when the metrics are rendered.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from registry.errors import BY_CODE
from service.http.observe import Metrics
from service.http.readiness import Readiness
from service.job_board import Outcome
from service.jobs.kinds import KINDS
from service.services import Services


class ServerMetrics:
    """Metrics of a server's services, which `services` returns once it has started."""

    def __init__(self, services: Callable[[], Services], readiness: Readiness) -> None:
        self._services = services
        self._readiness = readiness

    def add_to(self, metrics: Metrics) -> None:
        """Register the groups of metrics."""
        for group, collect in (
            ("ends", self._ends),
            ("readiness", self._ready),
            ("jobs", self._queue),
            ("blobs", self._stored),
            ("disk", self._disk),
            ("keys", self._keys),
        ):
            metrics.watch(group, collect)

    def _ends(self) -> Iterator[Metric]:
        """Yield all kinds, outcomes and codes, also those at 0: a counter that first appears at 1 has no increase."""
        ended = CounterMetricFamily(
            "soup_jobs_ended", "Tries of jobs by what came of them here.", labels=("kind", "outcome")
        )
        errors = CounterMetricFamily("soup_job_errors", "Errors that tries of jobs ended with here.", labels=("code",))
        took = SummaryMetricFamily("soup_job_seconds", "Seconds that tries of jobs took here.", labels=("kind",))
        totals = self._services().jobs.metrics.totals()
        for kind in KINDS:
            for outcome in get_args(Outcome):
                ended.add_metric((kind, outcome), totals.ends[kind, outcome])
            took.add_metric((kind,), totals.tries[kind], totals.seconds[kind])
        for code in BY_CODE:
            errors.add_metric((code,), totals.errors[code])
        yield from (ended, errors, took)

    def _ready(self) -> Iterator[Metric]:
        """Yield the last answer of /readyz and its age; rendering metrics computes no token."""
        last = self._readiness.last
        if last is not None:
            seconds, ready = last
            yield GaugeMetricFamily("soup_ready", "Whether /readyz said ready last.", value=ready.status == "ready")
            yield GaugeMetricFamily("soup_ready_age_seconds", "How long ago that was.", value=seconds)

    def _queue(self) -> Iterator[Metric]:
        kind = ("kind",)
        queued = GaugeMetricFamily("soup_jobs_queued", "Jobs that wait, of all servers of the database.", labels=kind)
        running = GaugeMetricFamily("soup_jobs_running", "Jobs that run, of all servers of the database.", labels=kind)
        oldest = GaugeMetricFamily(
            "soup_jobs_oldest_queued_seconds", "How long ago the oldest job that waits was to be begun.", labels=kind
        )
        with self._services().registry.database.read() as catalogue:
            queue = catalogue.jobs.queue()
        moment = datetime.now(UTC)
        for name in KINDS:
            waiting, since, at_work = queue.get(name, (0, None, 0))
            queued.add_metric((name,), waiting)
            running.add_metric((name,), at_work)
            oldest.add_metric((name,), 0.0 if since is None else max(0.0, (moment - since).total_seconds()))
        yield from (queued, running, oldest)

    def _stored(self) -> Iterator[Metric]:
        with self._services().registry.database.read() as catalogue:
            count, size = catalogue.blobs.total()
            going = catalogue.removals.count_pending()
        yield GaugeMetricFamily("soup_blobs", "Stored blobs.", value=count)
        yield GaugeMetricFamily("soup_blob_bytes", "Bytes of stored blobs.", value=size)
        yield GaugeMetricFamily("soup_blobs_to_remove", "Blobs whose files are to go.", value=going)

    def _disk(self) -> Iterator[Metric]:
        free = GaugeMetricFamily("soup_disk_free_bytes", "Bytes free where a folder lies.", labels=("folder",))
        total = GaugeMetricFamily("soup_disk_bytes", "Bytes of the disk where a folder lies.", labels=("folder",))
        folders: dict[str, Path] = {
            "data": self._services().settings.data,
            "blobs": self._services().settings.blob_place.folder,
        }
        for name, folder in folders.items():
            usage = shutil.disk_usage(folder)
            free.add_metric((name,), usage.free)
            total.add_metric((name,), usage.total)
        yield from (free, total)

    def _keys(self) -> Iterator[Metric]:
        keys = GaugeMetricFamily("soup_keys", "Keys by what they are now.", labels=("state",))
        with self._services().registry.database.read() as catalogue:
            counts = catalogue.keys.counts(datetime.now(UTC))
        for state, count in counts.items():
            keys.add_metric((state,), count)
        yield keys
