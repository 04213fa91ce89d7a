"""The conditions of a job, kept as Kubeflow's operator keeps them (``pkg/util/status.go``).

Three rules are its own: a condition that says nothing new is not written again, the newest stands
last, and *Running* and *Restarting* exclude one another. Two are stricter here: nothing follows
*Succeeded*, as nothing follows *Failed* (there a job could have both), and a final condition makes
*Restarting* false as it makes *Running* false.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

import msgspec

from danlu.training.types import Condition, ConditionType, JobStatus

__all__ = ["condition", "saying", "with_condition"]

FINAL = (ConditionType.SUCCEEDED, ConditionType.FAILED)
MOVING = (ConditionType.RUNNING, ConditionType.RESTARTING)


def condition(conditions: tuple[Condition, ...], type: ConditionType) -> Condition | None:
    """The condition of this type, true or not."""
    return next((one for one in conditions if one.type == type), None)


def with_condition(
    conditions: tuple[Condition, ...],
    type: ConditionType,
    *,
    status: Literal["True", "False"] = "True",
    reason: str,
    message: str,
    now: datetime,
) -> tuple[Condition, ...]:
    """The conditions once this is said; the same where it says nothing new or all is decided.

    A condition of the same status and reason stays as it is, whatever its message: a number that
    changes in it is not worth a write to every watcher.
    """
    before = condition(conditions, type)
    if _decided(conditions) or _says(before, status, reason):
        return conditions
    new = Condition(
        type=type,
        status=status,
        reason=reason,
        message=message,
        last_update_time=now,
        last_transition_time=_transition(before, status) or now,
    )
    return (*_beside(conditions, type), new)


def saying(
    status: JobStatus,
    type: ConditionType,
    *,
    value: Literal["True", "False"] = "True",
    reason: str,
    message: str,
    now: datetime,
) -> JobStatus:
    """The status once this condition is said."""
    conditions = with_condition(
        status.conditions, type, status=value, reason=reason, message=message, now=now
    )
    return msgspec.structs.replace(status, conditions=conditions)


def _decided(conditions: tuple[Condition, ...]) -> bool:
    return any(one.type in FINAL and one.status == "True" for one in conditions)


def _says(before: Condition | None, status: str, reason: str) -> bool:
    return before is not None and before.status == status and before.reason == reason


def _transition(before: Condition | None, status: str) -> datetime | None:
    same = before is not None and before.status == status
    return before.last_transition_time if before is not None and same else None


def _beside(conditions: tuple[Condition, ...], type: ConditionType) -> Iterator[Condition]:
    """What stays of the others beside a new condition of this type."""
    for one in conditions:
        if one.type == type or (one.type in MOVING and type in MOVING):
            continue
        if one.type in MOVING and type in FINAL:
            yield msgspec.structs.replace(one, status="False")
        else:
            yield one
