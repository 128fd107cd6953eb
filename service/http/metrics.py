"""Prometheus metrics of an app: requests, the engine, jobs, blobs, disk, keys, readiness.

`app` makes them, `observe` counts requests as they end, and `/metrics` renders all. The other metrics are read when
they are rendered, those of the database in a few queries.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from registry.errors import BY_CODE
from service.engine.adapter_metrics import AdapterTotals
from service.http import problems
from service.http.readiness import Readiness
from service.job_board import Outcome
from service.jobs.kinds import KINDS
from service.services import Services

log = logging.getLogger("service.request")
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Metrics:
    """The metrics of one app, in its own registry so that two apps can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route")
        self.requests = Counter(
            "soup_http_requests", "Requests answered, by route template.", (*labels, "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "soup_http_request_seconds",
            "Time until the last byte of an answer.",
            labels,
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.over_limit = Counter(
            "soup_limit_refusals",
            "Requests refused for a limit of their key or namespace.",
            ("limit",),
            registry=self.registry,
        )
        self.errors = Counter(
            "soup_http_errors", "Requests answered with an error, by its code.", ("code",), registry=self.registry
        )
        for code in problems.CODES:  # from the start: what first appears at 1 has not increased, to Prometheus
            self.errors.labels(code)
        self.failures = Counter(
            "soup_metrics_failures", "Parts of the metrics that were left out.", ("part",), registry=self.registry
        )
        ProcessCollector(registry=self.registry)
        self.in_flight = Gauge("soup_http_in_flight", "Requests being answered.", registry=self.registry)

    def watch(self, group: str, collect: Callable[[], Iterable[Metric]]) -> None:
        """Call `collect` whenever the metrics are rendered.

        If it fails, the group is omitted, counted and logged, and the other groups are rendered.
        """
        self.registry.register(_Group(group, collect, self.failures.labels(group)))

    def watch_engine(
        self, counters: Callable[[], Mapping[str, float]], by_adapter: Callable[[], Mapping[str, AdapterTotals]]
    ) -> None:
        """Read the engine's counters and its totals by adapter whenever the metrics are rendered."""
        self.watch("engine", lambda: _engine_metrics(counters()))
        self.watch("adapters", lambda: _adapter_metrics(by_adapter()))

    def render(self) -> bytes:
        """Return the metrics as Prometheus text."""
        return generate_latest(self.registry)


class _Group(Collector):
    """A group of metrics that may fail without the others."""

    def __init__(self, name: str, collect: Callable[[], Iterable[Metric]], failures: Counter) -> None:
        self._name = name
        self._collect = collect
        self._failures = failures

    def describe(self) -> Iterable[Metric]:
        """Return nothing: only `collect` knows the names, and it must not run before the server has started."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of this group, none if collecting them fails."""
        try:
            return list(self._collect())
        except Exception:
            self._failures.inc()
            log.warning("the metrics lack %s", self._name, exc_info=True)
            return []


def _engine_metrics(counters: Mapping[str, float]) -> Iterator[Metric]:
    """Yield the engine's numbers by name: names ending in `_total` are counters, the others gauges."""
    for name, value in counters.items():
        label = f"Engine: {name.replace('_', ' ')}."
        if name.endswith("_total"):
            yield CounterMetricFamily(f"soup_engine_{name.removesuffix('_total')}", label, value=value)
        else:
            yield GaugeMetricFamily(f"soup_engine_{name}", label, value=value)


def _adapter_metrics(totals_by_adapter: Mapping[str, AdapterTotals]) -> Iterator[Metric]:
    """Yield the engine's totals by adapter: counters of tokens, and summaries of seconds."""
    name, labels = "soup_engine_adapter", ("adapter",)
    generated = CounterMetricFamily(f"{name}_generated_tokens", "Tokens generated, by adapter.", labels=labels)
    scored = CounterMetricFamily(f"{name}_scored_tokens", "Tokens scored or embedded, by adapter.", labels=labels)
    first = SummaryMetricFamily(
        f"{name}_first_token_seconds", "Time to the first token of a generation, by adapter.", labels=labels
    )
    answers = SummaryMetricFamily(
        f"{name}_answer_seconds", "Time to the whole answer of a request, by adapter.", labels=labels
    )
    for adapter, totals in totals_by_adapter.items():
        generated.add_metric((adapter,), totals.generated_tokens)
        scored.add_metric((adapter,), totals.scored_tokens)
        first.add_metric((adapter,), totals.first_tokens, totals.first_token_seconds)
        answers.add_metric((adapter,), totals.answers, totals.seconds)
    yield from (generated, scored, first, answers)


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
        metrics = self._services().jobs.metrics
        for kind in KINDS:
            metrics.seconds.labels(kind)
            for outcome in get_args(Outcome):
                metrics.ended.labels(kind, outcome)
        for code in BY_CODE:
            metrics.errors.labels(code)
        for metric in (metrics.ended, metrics.errors, metrics.seconds):
            yield from metric.collect()

    def _ready(self) -> Iterator[Metric]:
        """Yield the last answer of /readyz and its age; rendering metrics computes no token."""
        last = self._readiness.last
        if last is not None:
            seconds, ready = last
            yield GaugeMetricFamily(
                "soup_ready", "1 if the last answer of /readyz was ready.", value=ready.status == "ready"
            )
            yield GaugeMetricFamily("soup_ready_age_seconds", "How long ago that was.", value=seconds)

    def _queue(self) -> Iterator[Metric]:
        kind = ("kind",)
        queued = GaugeMetricFamily("soup_jobs_queued", "Jobs that wait, of all servers of the database.", labels=kind)
        running = GaugeMetricFamily("soup_jobs_running", "Jobs that run, of all servers of the database.", labels=kind)
        oldest = GaugeMetricFamily(
            "soup_jobs_oldest_queued_seconds", "Seconds since the oldest queued job was due.", labels=kind
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
        yield GaugeMetricFamily("soup_blobs_to_remove", "Blobs whose files wait for removal.", value=going)

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
        keys = GaugeMetricFamily("soup_keys", "Keys by state.", labels=("state",))
        with self._services().registry.database.read() as catalogue:
            counts = catalogue.keys.counts(datetime.now(UTC))
        for state, count in counts.items():
            keys.add_metric((state,), count)
        yield keys
