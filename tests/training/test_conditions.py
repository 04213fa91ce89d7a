"""The rules of ``pkg/util/status_test.go``, and the two in which we are stricter."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from danlu.training.conditions import condition, with_condition
from danlu.training.types import Condition, ConditionType
from tests.training.stage import BEGIN

CREATED = ConditionType.CREATED
RUNNING = ConditionType.RUNNING
RESTARTING = ConditionType.RESTARTING
SUCCEEDED = ConditionType.SUCCEEDED
FAILED = ConditionType.FAILED
SUSPENDED = ConditionType.SUSPENDED

Conditions = tuple[Condition, ...]


def said(
    conditions: Conditions,
    type: ConditionType,
    *,
    status: Literal["True", "False"] = "True",
    reason: str = "Why",
    message: str = "",
    after: float = 0,
) -> Conditions:
    now = BEGIN + timedelta(seconds=after)
    return with_condition(conditions, type, status=status, reason=reason, message=message, now=now)


def words(conditions: Conditions) -> list[str]:
    return [f"{one.type}={one.status}" for one in conditions]


def test_the_latest_condition_stands_last() -> None:
    conditions = said(said((), CREATED), RUNNING)
    assert words(said(conditions, CREATED, reason="Again")) == ["Running=True", "Created=True"]


def test_what_is_said_already_changes_nothing() -> None:
    conditions = said((), RUNNING, message="one")
    assert said(conditions, RUNNING, message="two", after=5) is conditions


def test_another_reason_is_news_of_an_old_state() -> None:
    (new,) = said(said((), RUNNING), RUNNING, reason="Other", after=5)
    assert new.last_update_time == BEGIN + timedelta(seconds=5)
    assert new.last_transition_time == BEGIN


def test_a_change_of_status_is_a_transition() -> None:
    (new,) = said(said((), SUSPENDED), SUSPENDED, status="False", after=5)
    assert new.last_transition_time == BEGIN + timedelta(seconds=5)


def test_running_and_restarting_exclude_one_another() -> None:
    restarting = said(said(said((), CREATED), RUNNING), RESTARTING)
    assert words(restarting) == ["Created=True", "Restarting=True"]
    assert words(said(restarting, RUNNING)) == ["Created=True", "Running=True"]


def test_a_finished_job_does_not_run() -> None:
    conditions = said(said((), RUNNING, reason="Runs"), SUCCEEDED, after=5)
    assert words(conditions) == ["Running=False", "Succeeded=True"]
    assert conditions[0].reason == "Runs"
    assert conditions[0].last_transition_time == BEGIN


def test_a_finished_job_does_not_restart() -> None:
    assert words(said(said((), RESTARTING), FAILED)) == ["Restarting=False", "Failed=True"]


def test_nothing_follows_failed() -> None:
    conditions = said((), FAILED)
    for type in ConditionType:
        assert said(conditions, type, reason="Later") is conditions


def test_nothing_follows_succeeded() -> None:
    conditions = said((), SUCCEEDED)
    for type in ConditionType:
        assert said(conditions, type, reason="Later") is conditions


def test_a_condition_that_is_not_there_is_none() -> None:
    assert condition(said((), CREATED), FAILED) is None
