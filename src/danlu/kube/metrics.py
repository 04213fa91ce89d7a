"""Prometheus metrics of controllers, work queues, requests and the process.

The names are those of controller-runtime and client-go, so that existing dashboards show them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import prometheus_client
from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from danlu.kube.clock import Clock
from danlu.kube.controller import Controller

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MetricsRegistry = prometheus_client.CollectorRegistry

_LATENCY_BUCKETS = (
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)
_QUEUE_BUCKETS = (1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)

# The `_created` series of the Python client double the number of series, and the Go client, whose
# dashboards we serve, has none.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


def render_metrics(registry: MetricsRegistry) -> str:
    """Return all metrics in Prometheus' text format 0.0.4."""
    return prometheus_client.generate_latest(registry).decode()


def register_process_metrics(registry: MetricsRegistry) -> None:
    """Register ``process_cpu_seconds_total``, ``process_resident_memory_bytes`` and so on."""
    prometheus_client.ProcessCollector(registry=registry)


class _WorkQueueMetrics:
    """The metrics of one work queue (:class:`danlu.kube.workqueue.QueueMeter`)."""

    def __init__(self, metrics: ControllerMetrics, name: str) -> None:
        self._adds = metrics.adds.labels(name)
        self._retries = metrics.retries.labels(name)
        self._queue_seconds = metrics.queue_seconds.labels(name)
        self._work_seconds = metrics.work_seconds.labels(name)

    def on_add(self) -> None:
        self._adds.inc()

    def on_retry(self) -> None:
        self._retries.inc()

    def on_get(self, seconds: float) -> None:
        self._queue_seconds.observe(seconds)

    def on_done(self, seconds: float) -> None:
        self._work_seconds.observe(seconds)


class ControllerMetrics(Collector):
    """The metrics of all controllers of a program and of their queues.

    Counters and histograms are updated as things happen; the gauges are read from the queues when
    Prometheus scrapes them.
    """

    def __init__(self, registry: MetricsRegistry, clock: Clock) -> None:
        self._clock = clock
        self._controllers: list[Controller[Any]] = []
        self.adds = Counter(
            "workqueue_adds_total", "Keys added to the queue", ["name"], registry=registry
        )
        self.retries = Counter(
            "workqueue_retries_total",
            "Keys added again after a failure",
            ["name"],
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "workqueue_queue_duration_seconds",
            "How long keys wait in the queue",
            ["name"],
            buckets=_QUEUE_BUCKETS,
            registry=registry,
        )
        self.work_seconds = Histogram(
            "workqueue_work_duration_seconds",
            "How long processing a key takes",
            ["name"],
            buckets=_QUEUE_BUCKETS,
            registry=registry,
        )
        self.results = Counter(
            "controller_runtime_reconcile_total",
            "Reconciliations by result",
            ["controller", "result"],
            registry=registry,
        )
        self.errors = Counter(
            "controller_runtime_reconcile_errors_total",
            "Failed reconciliations",
            ["controller"],
            registry=registry,
        )
        self.seconds = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "How long a reconciliation takes",
            ["controller"],
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        registry.register(self)

    def add(self, controller: Controller[Any]) -> None:
        """Measure a controller and its queue."""
        self._controllers.append(controller)
        controller.queue.meter = _WorkQueueMetrics(self, controller.name)
        errors = self.errors.labels(controller.name)
        time = self.seconds.labels(controller.name)

        def on_reconcile(result: str, seconds: float) -> None:
            self.results.labels(controller.name, result).inc()
            time.observe(seconds)
            if result.endswith("error"):
                errors.inc()

        controller.meter = on_reconcile

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges with their values now."""
        depth = GaugeMetricFamily(
            "workqueue_depth", "Keys ready to be processed", labels=["name", "priority"]
        )
        for controller in self._controllers:
            for priority, length in sorted(controller.queue.depths.items()):
                depth.add_metric([controller.name, str(priority)], length)
        yield depth
        yield self._collect_gauge(
            "workqueue_longest_running_processor_seconds",
            "How long the oldest key in work has been processed",
            "name",
            lambda controller: max(self._work_ages(controller), default=0.0),
        )
        yield self._collect_gauge(
            "workqueue_unfinished_work_seconds",
            "How long all keys in work have been processed, added up",
            "name",
            lambda controller: sum(self._work_ages(controller)),
        )
        yield self._collect_gauge(
            "controller_runtime_active_workers",
            "Workers that are processing a key",
            "controller",
            lambda controller: controller.active,
        )
        yield self._collect_gauge(
            "controller_runtime_max_concurrent_reconciles",
            "Number of workers",
            "controller",
            lambda controller: controller.workers,
        )

    def _collect_gauge(
        self, name: str, help: str, label: str, read: Callable[[Controller[Any]], float]
    ) -> Metric:
        gauge = GaugeMetricFamily(name, help, labels=[label])
        for controller in self._controllers:
            gauge.add_metric([controller.name], read(controller))
        return gauge

    def _work_ages(self, controller: Controller[Any]) -> list[float]:
        now = self._clock.monotonic()
        return [now - begun for begun in controller.queue.processing.values()]


class RequestMetrics:
    """Counts requests by method, host and code (client-go's ``rest_client_*``)."""

    def __init__(self, registry: MetricsRegistry, host: str) -> None:
        self._host = host
        self._requests = Counter(
            "rest_client_requests_total",
            "API requests",
            ["code", "host", "method"],
            registry=registry,
        )
        self._seconds = Histogram(
            "rest_client_request_duration_seconds",
            "How long API requests take",
            ["host", "verb"],
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )

    def __call__(self, method: str, code: int, seconds: float) -> None:
        """Count one attempt; ``code`` is 0 if there was no response."""
        self._requests.labels(str(code) if code else "<error>", self._host, method).inc()
        self._seconds.labels(self._host, method).observe(seconds)
