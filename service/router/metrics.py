"""Prometheus metrics of a router."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
REASONS = ("refused", "broken")


class RouterMetrics:
    """The metrics of one router, in a registry of its own; `replicas` says how many take requests now."""

    def __init__(self, replicas: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_Replicas(replicas))
        self.requests = Counter(
            "soup_router_requests", "Requests answered, by whether they went by an adapter.", ("kind", "status"),
            registry=self._registry,
        )  # fmt: skip
        self.seconds = Histogram(
            "soup_router_request_seconds", "Time until the last byte of an answer.", ("kind",), buckets=BUCKETS,
            registry=self._registry,
        )  # fmt: skip
        self.lost = Counter(
            "soup_router_lost", "Requests that a replica did not answer, or not to the end.", ("reason",),
            registry=self._registry,
        )  # fmt: skip
        for reason in REASONS:
            self.lost.labels(reason)
        self.in_flight = Gauge("soup_router_in_flight", "Requests being answered.", registry=self._registry)

    def render(self) -> bytes:
        """The metrics as Prometheus text."""
        return generate_latest(self._registry)


class _Replicas(Collector):
    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count

    def collect(self) -> Iterable[Metric]:
        """How many replicas take requests."""
        return [GaugeMetricFamily("soup_router_replicas", "Replicas that take requests.", value=self._count())]
