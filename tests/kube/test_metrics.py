"""Prometheus metrics: their names, and their text format."""

from __future__ import annotations

import pytest

from danlu.kube.clock import REAL_CLOCK
from danlu.kube.controller import Controller, ReconcileResult, Success
from danlu.kube.metrics import (
    ControllerMetrics,
    MetricsRegistry,
    RequestMetrics,
    register_process_metrics,
    render_metrics,
)
from danlu.kube.types import Key, Object


async def reconcile(key: Key) -> ReconcileResult:
    return Success()


def test_requests_are_counted_under_client_gos_names() -> None:
    registry = MetricsRegistry()
    observe = RequestMetrics(registry, 'a"host')
    observe("GET", 200, 0.004)
    observe("GET", 0, 70.0)
    text = render_metrics(registry)
    for line in (
        "# TYPE rest_client_requests_total counter",
        'rest_client_requests_total{code="200",host="a\\"host",method="GET"} 1.0',
        'rest_client_requests_total{code="<error>",host="a\\"host",method="GET"} 1.0',
        "# TYPE rest_client_request_duration_seconds histogram",
        'rest_client_request_duration_seconds_bucket{host="a\\"host",le="0.001",verb="GET"} 0.0',
        'rest_client_request_duration_seconds_bucket{host="a\\"host",le="0.005",verb="GET"} 1.0',
        'rest_client_request_duration_seconds_bucket{host="a\\"host",le="60.0",verb="GET"} 1.0',
        'rest_client_request_duration_seconds_bucket{host="a\\"host",le="+Inf",verb="GET"} 2.0',
        'rest_client_request_duration_seconds_sum{host="a\\"host",verb="GET"} 70.004',
        'rest_client_request_duration_seconds_count{host="a\\"host",verb="GET"} 2.0',
    ):
        assert f"{line}\n" in text


def test_gauges_are_read_from_the_queue_at_every_scrape() -> None:
    registry = MetricsRegistry()
    controller: Controller[Object] = Controller("jobs", reconcile, workers=3)
    ControllerMetrics(registry, REAL_CLOCK).add(controller)
    assert 'workqueue_depth{name="jobs",priority="0"} 0.0\n' in render_metrics(registry)
    controller.queue.add(Key("", "a"))
    controller.queue.add(Key("", "b"), priority=-100)
    text = render_metrics(registry)
    assert 'workqueue_depth{name="jobs",priority="0"} 1.0\n' in text
    assert 'workqueue_depth{name="jobs",priority="-100"} 1.0\n' in text
    assert 'workqueue_adds_total{name="jobs"} 2.0\n' in text
    assert 'controller_runtime_max_concurrent_reconciles{controller="jobs"} 3.0\n' in text


def test_process_metrics_have_prometheus_names_and_no_creation_times() -> None:
    registry = MetricsRegistry()
    register_process_metrics(registry)
    RequestMetrics(registry, "host")("GET", 200, 0.1)
    text = render_metrics(registry)
    for name in ("cpu_seconds_total", "resident_memory_bytes", "start_time_seconds"):
        assert f"\nprocess_{name} " in text
    assert "_created" not in text


def test_a_metric_is_registered_once() -> None:
    registry = MetricsRegistry()
    RequestMetrics(registry, "host")
    with pytest.raises(ValueError, match="Duplicated"):
        RequestMetrics(registry, "host")
