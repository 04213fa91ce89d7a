"""Progress reports of training programs: accepted and rejected ones."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.training.progress import MAX_REPORT_BYTES, TrainingProgress, parse_progress, status_path

TIME = "2026-01-23T10:30:45.250000+00:00"


def report(**fields: Any) -> bytes:
    return json.dumps({"trainerStatus": {"lastUpdatedTime": TIME, **fields}}).encode()


def metric(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}


def test_a_report_of_transformers_is_parsed() -> None:
    body = report(
        progressPercentage=45,
        estimatedRemainingSeconds=795649,
        metrics=[metric("loss", "0.2347"), metric("current_step", "45")],
    )
    assert parse_progress(body) == TrainingProgress(
        percentage=45,
        seconds_left=795649,
        metrics={"loss": 0.2347, "current_step": 45.0},
        updated=datetime(2026, 1, 23, 10, 30, 45, 250000, tzinfo=UTC),
        history={"loss": ((1769164245.25, 0.2347),), "current_step": ((1769164245.25, 45.0),)},
    )


def test_points_of_a_report_are_validated() -> None:
    points = '{"loss": [[2, 0.5], [1, 1]]}'
    body = report()[:-1] + f', "danluPoints": {points}'.encode() + b"}"
    progress = parse_progress(body)
    assert progress is not None
    assert progress.history == {"loss": ((1.0, 1.0), (2.0, 0.5))}
    for wrong in (
        '{"loss": [[1]]}',
        '{"loss": [[1, 1e999]]}',
        '{"loss": [["a", 1]]}',
        "[]",
        '{"": []}',
    ):
        with pytest.raises(ValueError, match="danluPoints"):
            parse_progress(body.replace(points.encode(), wrong.encode()))


def test_a_report_may_be_empty() -> None:
    assert parse_progress(b"{}") is None
    assert parse_progress(b'{"trainerStatus": null, "dataInitializerStatus": {}}') is None


def test_metrics_that_are_not_finite_are_ignored() -> None:
    body = report(metrics=[metric("loss", "nan"), metric("who", "me"), metric("lr", "1e-3")])
    progress = parse_progress(body)
    assert progress is not None
    assert progress.metrics == {"lr": 0.001}
    # JSON has no word for NaN, and a view that cannot be read again would be lost.
    assert msgspec.json.decode(msgspec.json.encode(progress), type=TrainingProgress) == progress


def test_the_last_of_two_metrics_with_the_same_name_wins() -> None:
    progress = parse_progress(report(metrics=[metric("loss", "2"), metric("loss", "1")]))
    assert progress is not None
    assert progress.metrics == {"loss": 1.0}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "truncated"),
        (b"[]", "Expected `object`"),
        (b'{"trainerStatus": {}}', "lastUpdatedTime"),
        (b'{"trainerStatus": {"lastUpdatedTime": "yesterday"}}', "Invalid RFC3339"),
        (b'{"trainerStatus": {"lastUpdatedTime": "2026-01-23T10:30:45"}}', "timezone"),
        (report(progressPercentage=101), "<= 100"),
        (report(progressPercentage=-1), ">= 0"),
        (report(progressPercentage="45"), "Expected `int"),
        (report(progressPercentage=4.5), "Expected `int"),
        (report(estimatedRemainingSeconds=-1), ">= 0"),
        (report(estimatedRemainingSeconds=2**31), "<= 2147483647"),
        (report(metrics=[metric("", "1")]), "length >= 1"),
        (report(metrics=[metric("n" * 65, "1")]), "length <= 64"),
        (report(metrics=[metric("n", "1" * 65)]), "length <= 64"),
        (report(metrics=[{"name": "loss", "value": 0.5}]), "Expected `str`"),
        (report(metrics=[{"name": "loss"}]), "value"),
        (report(metrics=[metric(f"m{n}", "1") for n in range(257)]), "length <= 256"),
        (report(metrics=[metric("who", "me")]).replace(b'"me"', b'"\xff"'), "utf-8"),
        (b'{"a":' * 5000, "recursion"),
        (b" " * (MAX_REPORT_BYTES + 1), f"{MAX_REPORT_BYTES} bytes"),
    ],
)
def test_an_invalid_report_is_rejected(body: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_progress(body)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_parsed_or_rejected(body: bytes) -> None:
    with suppress(ValueError):
        assert parse_progress(body) is None or body.startswith(b"{")


def test_the_path_is_the_one_of_kubeflow_trainer() -> None:
    expected = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/mnist/status"
    assert status_path("team", "mnist") == expected
