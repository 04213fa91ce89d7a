"""Metrics and their text."""

from __future__ import annotations

import pytest

from danlu.kube.metrics import Metrics


def test_the_text_is_what_prometheus_reads() -> None:
    metrics = Metrics()
    jobs = metrics.counter("jobs_total", 'Jobs "made"\nby us', "kind")
    jobs.add(kind="b")
    jobs.add(2, kind='a"\\\n')
    metrics.gauge("depth", "Depth").set(1.5)
    seconds = metrics.histogram("seconds", "Time", "kind", bounds=(0.1, 1.0))
    for number in (0.05, 0.1, 0.5, 7):
        seconds.observe(number, kind="x")
    assert metrics.text() == (
        "# HELP depth Depth\n"
        "# TYPE depth gauge\n"
        "depth 1.5\n"
        '# HELP jobs_total Jobs \\"made\\"\\nby us\n'
        "# TYPE jobs_total counter\n"
        'jobs_total{kind="a\\"\\\\\\n"} 2\n'
        'jobs_total{kind="b"} 1\n'
        "# HELP seconds Time\n"
        "# TYPE seconds histogram\n"
        'seconds_bucket{kind="x",le="0.1"} 2\n'
        'seconds_bucket{kind="x",le="1"} 3\n'
        'seconds_bucket{kind="x",le="+Inf"} 4\n'
        'seconds_sum{kind="x"} 7.65\n'
        'seconds_count{kind="x"} 4\n'
    )


def test_a_gauge_may_be_read_when_it_is_asked_for() -> None:
    metrics = Metrics()
    depth = 1.0
    metrics.gauge("depth", "Depth", "name", read=lambda: [(("a",), depth)])
    assert 'depth{name="a"} 1\n' in metrics.text()
    depth = 2.0
    assert 'depth{name="a"} 2\n' in metrics.text()


def test_wrong_use_is_refused() -> None:
    metrics = Metrics()
    counter = metrics.counter("a_total", "A", "kind")
    with pytest.raises(ValueError, match="has the labels"):
        counter.add(sort="x")
    with pytest.raises(ValueError, match="cannot go down"):
        counter.add(-1, kind="x")
    with pytest.raises(ValueError, match="already"):
        metrics.gauge("a_total", "A")
    counter.add(3, kind="x")
    assert counter.value(kind="x") == 3
