"""The conditions of a job, maintained as Kubeflow's operator does (``pkg/util/status.go``).

Its three rules: a condition that repeats status and reason is not written again, the newest comes
last, and *Running* and *Restarting* exclude each other. Two rules are stricter here: nothing
follows *Succeeded*, just as nothing follows *Failed* (in Kubeflow a job can have both), and a final
condition sets *Restarting* to false as it does *Running*.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

import msgspec

from danlu.training.types import ConditionType, JobCondition, JobStatus

FINAL = (ConditionType.SUCCEEDED, ConditionType.FAILED)
MOVING = (ConditionType.RUNNING, ConditionType.RESTARTING)


def find_condition(
    conditions: tuple[JobCondition, ...], type: ConditionType
) -> JobCondition | None:
    """Return the condition of this type, whether true or false."""
    return next((condition for condition in conditions if condition.type == type), None)


def add_condition(
    conditions: tuple[JobCondition, ...],
    type: ConditionType,
    *,
    status: Literal["True", "False"] = "True",
    reason: str,
    message: str,
    now: datetime,
) -> tuple[JobCondition, ...]:
    """Return the conditions with this one added, or the same tuple if nothing changes.

    A condition with the same status and reason is kept even if the message differs: a counter in
    the text is not worth a write that wakes every watcher.
    """
    before = find_condition(conditions, type)
    is_final = any(
        condition.type in FINAL and condition.status == "True" for condition in conditions
    )
    same_status = before is not None and before.status == status
    if is_final or (before is not None and same_status and before.reason == reason):
        return conditions
    transition = before.last_transition_time if before is not None and same_status else None
    new = JobCondition(
        type=type,
        status=status,
        reason=reason,
        message=message,
        last_update_time=now,
        last_transition_time=transition or now,
    )
    return (*_remaining_conditions(conditions, type), new)


def set_condition(
    status: JobStatus,
    type: ConditionType,
    *,
    value: Literal["True", "False"] = "True",
    reason: str,
    message: str,
    now: datetime,
) -> JobStatus:
    """Return the status with this condition; see :func:`add_condition`."""
    conditions = add_condition(
        status.conditions, type, status=value, reason=reason, message=message, now=now
    )
    return msgspec.structs.replace(status, conditions=conditions)


def _remaining_conditions(
    conditions: tuple[JobCondition, ...], type: ConditionType
) -> Iterator[JobCondition]:
    """Yield the conditions that stay next to a new one of this type."""
    for condition in conditions:
        if condition.type == type or (condition.type in MOVING and type in MOVING):
            continue
        if condition.type in MOVING and type in FINAL:
            yield msgspec.structs.replace(condition, status="False")
        else:
            yield condition
