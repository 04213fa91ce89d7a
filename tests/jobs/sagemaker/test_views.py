"""Views of training jobs, also of those that somebody described to deceive."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.jobs.sagemaker.views import MAX_REPLICAS, build_view
from danlu.replica_runtime.sagemaker import describe_failure
from danlu.training.types import ConditionType

CREATED = datetime(2026, 1, 2, tzinfo=UTC)
ENDED = CREATED + timedelta(minutes=5)


def describe(status: str, secondary: str, **fields: Any) -> dict[str, Any]:
    return {
        "TrainingJobName": "demo",
        "TrainingJobStatus": status,
        "SecondaryStatus": secondary,
        "CreationTime": CREATED,
        "ResourceConfig": {"InstanceCount": 2},
        "Environment": {"DANLU_JOB": "pytorch Master=1,Worker=1"},
        **fields,
    }


@pytest.mark.parametrize(
    ("status", "secondary", "fields", "state", "replicas"),
    [
        ("InProgress", "Starting", {}, "Pending", "Pending"),
        ("InProgress", "Training", {"TrainingStartTime": CREATED}, "Running", "Running"),
        ("InProgress", "Uploading", {"TrainingStartTime": CREATED}, "Running", "Running"),
        ("Stopping", "Stopping", {"TrainingStartTime": CREATED}, "Stopping", "Running"),
        ("Stopped", "Stopped", {"TrainingEndTime": ENDED}, "Stopped", "Stopped"),
        ("Stopped", "MaxRuntimeExceeded", {"TrainingEndTime": ENDED}, "Failed", "Stopped"),
        ("Completed", "Completed", {"TrainingEndTime": ENDED}, "Succeeded", "Succeeded"),
        ("Failed", "Failed", {"TrainingEndTime": ENDED}, "Failed", "Failed"),
    ],
)
def test_states_of_the_service_are_those_of_jobs(
    status: str, secondary: str, fields: dict[str, Any], state: str, replicas: str
) -> None:
    view = build_view(describe(status, secondary, **fields), where="aws")
    assert view.state == state
    assert [str(replica.id) for replica in view.replicas] == ["master-0", "worker-0"]
    assert {replica.state for replica in view.replicas} == {replicas}
    assert view.finished == (status in ("Stopped", "Completed", "Failed"))
    assert view.framework == "pytorch"


def test_a_waiting_replica_says_what_the_service_does() -> None:
    transitions = [{"Status": "Starting", "StatusMessage": "Insufficient\x1b[31m capacity\n…"}]
    view = build_view(
        describe("InProgress", "Starting", SecondaryStatusTransitions=transitions), where="aws"
    )
    assert view.replicas[0].waits == "Starting: Insufficient capacity …"


def test_the_reason_of_our_entrypoint_names_the_replica_and_the_exception() -> None:
    lines = ["Traceback (most recent call last):", '  File "train.py", line 1', "ValueError: no"]
    written = "rank 1 of 2 (algo-2): " + describe_failure(["python", "train.py"], 3, lines)
    job = describe(
        "Failed",
        "Failed",
        FailureReason=f"AlgorithmError: {written}, exit code: 3",
        TrainingEndTime=ENDED,
    )
    first = build_view(job, where="aws").status.first_failure
    assert first is not None
    assert (str(first.replica), first.exit_code, first.message) == ("worker-0", 3, "ValueError: no")


@pytest.mark.parametrize(
    ("reason", "word", "message"),
    [
        ("InternalServerError: Please retry.", "InternalServerError", "Please retry."),
        ("CapacityError: Unable to provision.", "CapacityError", "another instance type"),
        ("ClientError: Data download failed", "ClientError", "Data download failed"),
        ("", "Failed", "no reason was given"),
    ],
)
def test_failures_of_the_service_blame_no_replica(reason: str, word: str, message: str) -> None:
    job = describe("Failed", "Failed", FailureReason=reason, TrainingEndTime=ENDED)
    status = build_view(job, where="aws").status
    assert status.first_failure is None
    assert status.conditions[-1].type is ConditionType.FAILED
    assert status.conditions[-1].reason == word
    assert message in status.conditions[-1].message


HOSTILE = st.text(max_size=60) | st.sampled_from(
    [
        "AlgorithmError: rank 1 of 2 (algo-99): x",
        "AlgorithmError: \x1b]0;title\x07\x1b[2Jgone, exit code: 999999",
        "rank 0 of 1 (algo-1): \n\n\n",
        "AlgorithmError: " + "x" * 5000,
    ]
)


@given(reason=HOSTILE, replicas=HOSTILE, count=st.integers(0, 1 << 40), message=HOSTILE)
def test_a_hostile_description_has_a_limited_view_without_control_characters(
    reason: str, replicas: str, count: int, message: str
) -> None:
    job = describe("Failed", "Failed", FailureReason=reason, TrainingEndTime=ENDED)
    job["Environment"] = {"DANLU_JOB": replicas, "DANLU_LABELS": replicas}
    job["ResourceConfig"] = {"InstanceCount": min(count, 3) if count % 7 else count}
    job["SecondaryStatusTransitions"] = [{"Status": "Failed", "StatusMessage": message}]
    view = build_view(job, where="aws")
    assert len(view.replicas) <= MAX_REPLICAS
    shown = [condition.message for condition in view.status.conditions]
    shown += [view.status.first_failure.message] if view.status.first_failure else []
    assert all("\x1b" not in text and "\n" not in text and len(text) < 600 for text in shown)


def test_numbers_of_replicas_are_those_of_the_request() -> None:
    job = describe("InProgress", "Training")
    job["Environment"] = {"DANLU_JOB": "pytorch Worker=1000000000000"}
    assert len(build_view(job, where="aws").replicas) == 2
