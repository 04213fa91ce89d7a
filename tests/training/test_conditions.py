"""The rules of ``pkg/util/status_test.go``, and two stricter rules of ours."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from danlu.training.conditions import add_condition, find_condition
from danlu.training.types import ConditionType, JobCondition
from tests.training.job_simulation import BEGIN

CREATED = ConditionType.CREATED
RUNNING = ConditionType.RUNNING
RESTARTING = ConditionType.RESTARTING
SUCCEEDED = ConditionType.SUCCEEDED
FAILED = ConditionType.FAILED
SUSPENDED = ConditionType.SUSPENDED

Conditions = tuple[JobCondition, ...]


def add(
    conditions: Conditions,
    type: ConditionType,
    *,
    status: Literal["True", "False"] = "True",
    reason: str = "Why",
    message: str = "",
    after: float = 0,
) -> Conditions:
    now = BEGIN + timedelta(seconds=after)
    return add_condition(conditions, type, status=status, reason=reason, message=message, now=now)


def format_conditions(conditions: Conditions) -> list[str]:
    return [f"{condition.type}={condition.status}" for condition in conditions]


def test_latest_condition_is_last() -> None:
    conditions = add(add((), CREATED), RUNNING)
    assert format_conditions(add(conditions, CREATED, reason="Again")) == [
        "Running=True",
        "Created=True",
    ]


def test_repeated_condition_changes_nothing() -> None:
    conditions = add((), RUNNING, message="one")
    assert add(conditions, RUNNING, message="two", after=5) is conditions


def test_new_reason_keeps_the_transition_time() -> None:
    (new,) = add(add((), RUNNING), RUNNING, reason="Other", after=5)
    assert new.last_update_time == BEGIN + timedelta(seconds=5)
    assert new.last_transition_time == BEGIN


def test_status_change_sets_the_transition_time() -> None:
    (new,) = add(add((), SUSPENDED), SUSPENDED, status="False", after=5)
    assert new.last_transition_time == BEGIN + timedelta(seconds=5)


def test_running_and_restarting_are_mutually_exclusive() -> None:
    restarting = add(add(add((), CREATED), RUNNING), RESTARTING)
    assert format_conditions(restarting) == ["Created=True", "Restarting=True"]
    assert format_conditions(add(restarting, RUNNING)) == ["Created=True", "Running=True"]


def test_finished_job_is_not_running() -> None:
    conditions = add(add((), RUNNING, reason="Runs"), SUCCEEDED, after=5)
    assert format_conditions(conditions) == ["Running=False", "Succeeded=True"]
    assert conditions[0].reason == "Runs"
    assert conditions[0].last_transition_time == BEGIN


def test_finished_job_is_not_restarting() -> None:
    assert format_conditions(add(add((), RESTARTING), FAILED)) == [
        "Restarting=False",
        "Failed=True",
    ]


def test_failed_is_final() -> None:
    conditions = add((), FAILED)
    for type in ConditionType:
        assert add(conditions, type, reason="Later") is conditions


def test_succeeded_is_final() -> None:
    conditions = add((), SUCCEEDED)
    for type in ConditionType:
        assert add(conditions, type, reason="Later") is conditions


def test_missing_condition_is_none() -> None:
    assert find_condition(add((), CREATED), FAILED) is None
