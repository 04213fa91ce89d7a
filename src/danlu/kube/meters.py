"""What controllers, queues and requests count, under the names that dashboards know.

The names are those of controller-runtime and client-go, so existing dashboards show them.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from typing import Any

from danlu.kube.controller import Controller
from danlu.kube.metrics import Histogram, Metrics
from danlu.kube.types import Clock

__all__ = ["ControllerMeters", "RequestMeter", "process_metrics"]

_QUEUE_BOUNDS = (1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)


class _QueueMeter:
    def __init__(self, meters: ControllerMeters, name: str) -> None:
        self._meters = meters
        self._name = name

    def added(self) -> None:
        self._meters.adds.add(name=self._name)

    def retried(self) -> None:
        self._meters.retries.add(name=self._name)

    def waited(self, seconds: float) -> None:
        self._meters.waited.observe(seconds, name=self._name)

    def worked(self, seconds: float) -> None:
        self._meters.worked.observe(seconds, name=self._name)


class ControllerMeters:
    """The metrics of a program's controllers and their queues."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._clock = clock
        self._controllers: list[Controller[Any]] = []
        self.adds = metrics.counter("workqueue_adds_total", "Keys added", "name")
        self.retries = metrics.counter("workqueue_retries_total", "Keys added again", "name")
        self.waited = self._seconds(metrics, "workqueue_queue_duration_seconds", "Wait of keys")
        self.worked = self._seconds(metrics, "workqueue_work_duration_seconds", "Work on keys")
        self.results = metrics.counter(
            "controller_runtime_reconcile_total", "Reconciliations", "controller", "result"
        )
        self.errors = metrics.counter(
            "controller_runtime_reconcile_errors_total", "Failed reconciliations", "controller"
        )
        self.seconds = metrics.histogram(
            "controller_runtime_reconcile_time_seconds", "Time of reconciliations", "controller"
        )
        for name, help, read in (
            ("workqueue_depth", "Keys that are ready", self._depths),
            ("workqueue_longest_running_processor_seconds", "Longest work", self._longest),
            ("workqueue_unfinished_work_seconds", "Work under way", self._unfinished),
        ):
            metrics.gauge(name, help, "name", read=read)
        metrics.gauge(
            "controller_runtime_active_workers", "Busy workers", "controller", read=self._active
        )
        metrics.gauge(
            "controller_runtime_max_concurrent_reconciles",
            "All workers",
            "controller",
            read=self._workers,
        )

    @staticmethod
    def _seconds(metrics: Metrics, name: str, help: str) -> Histogram:
        return metrics.histogram(name, help, "name", bounds=_QUEUE_BOUNDS)

    def add(self, controller: Controller[Any]) -> None:
        """Measure a controller and its queue."""
        self._controllers.append(controller)
        controller.queue.meter = _QueueMeter(self, controller.name)

        def measured(result: str, seconds: float) -> None:
            self.results.add(controller=controller.name, result=result)
            self.seconds.observe(seconds, controller=controller.name)
            if result.endswith("error"):
                self.errors.add(controller=controller.name)

        controller.meter = measured

    def _depths(self) -> Iterable[tuple[tuple[str, ...], float]]:
        return [((one.name,), float(len(one.queue))) for one in self._controllers]

    def _active(self) -> Iterable[tuple[tuple[str, ...], float]]:
        return [((one.name,), float(one.active)) for one in self._controllers]

    def _workers(self) -> Iterable[tuple[tuple[str, ...], float]]:
        return [((one.name,), float(one.workers)) for one in self._controllers]

    def _longest(self) -> Iterable[tuple[tuple[str, ...], float]]:
        return [((one.name,), max(self._ages(one), default=0.0)) for one in self._controllers]

    def _unfinished(self) -> Iterable[tuple[tuple[str, ...], float]]:
        return [((one.name,), sum(self._ages(one))) for one in self._controllers]

    def _ages(self, controller: Controller[Any]) -> list[float]:
        now = self._clock.monotonic()
        return [now - begun for begun in controller.queue.working.values()]


class RequestMeter:
    """Counts requests by method, host and code (client-go's ``rest_client_*``)."""

    def __init__(self, metrics: Metrics, host: str) -> None:
        self._host = host
        self._requests = metrics.counter(
            "rest_client_requests_total", "Requests", "code", "host", "method"
        )
        self._seconds = metrics.histogram(
            "rest_client_request_duration_seconds", "Time to an answer", "host", "verb"
        )

    def __call__(self, method: str, code: int, seconds: float) -> None:
        """Count one."""
        shown = str(code) if code else "<error>"
        self._requests.add(code=shown, host=self._host, method=method)
        self._seconds.observe(seconds, host=self._host, verb=method)


def process_metrics(metrics: Metrics) -> None:
    """What this process uses, under the names of Prometheus' own clients."""
    begun = time.time()
    page = os.sysconf("SC_PAGE_SIZE")

    def memory() -> Iterable[tuple[tuple[str, ...], float]]:
        with open("/proc/self/statm", "rb") as file:
            return [((), float(int(file.read().split()[1]) * page))]

    def seconds() -> Iterable[tuple[tuple[str, ...], float]]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return [((), used.ru_utime + used.ru_stime)]

    metrics.gauge("process_resident_memory_bytes", "Memory in use", read=memory)
    metrics.gauge("process_cpu_seconds_total", "CPU time used", read=seconds)
    metrics.gauge("process_start_time_seconds", "Start", read=lambda: [((), begun)])
