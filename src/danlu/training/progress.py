"""What a training program posts about itself: the training-progress protocol, read strictly.

The protocol is Kubeflow Trainer's (``trainer.kubeflow.org/v1alpha1``, feature ``TrainJobStatus``,
KEP-2779): a program that finds :data:`SERVER_URL` in its environment posts JSON there. Limits are
those of its ``pkg/statusserver`` and of the CRD. Transformers' ``Trainer`` and the Kubeflow SDK
speak it without being asked to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import msgspec

__all__ = [
    "CA_CERT",
    "LIMIT",
    "SERVER_URL",
    "TOKEN",
    "Progress",
    "progress_of",
    "status_path",
]

SERVER_URL = "KUBEFLOW_TRAINER_SERVER_URL"
CA_CERT = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
"""The variable that holds the *path* of the certificates the server is verified against."""
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
"""The variable that holds the *path* of the token; programs read it again now and then."""

LIMIT = 1 << 16
"""Bytes of a report at most (statusserver's ``maxBodySize``)."""

_INT32 = 2**31 - 1
_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=_INT32)]
_Label = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class Progress(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How far a job says it is, by the training-progress protocol (Kubeflow Trainer's
    ``trainerStatus``): percent, an estimate in seconds, and the last value of each metric.
    """

    percentage: int | None = msgspec.field(default=None, name="progressPercentage")
    seconds_left: int | None = msgspec.field(default=None, name="estimatedRemainingSeconds")
    metrics: Mapping[str, float] = {}
    updated: datetime | None = msgspec.field(default=None, name="lastUpdatedTime")


class _Metric(msgspec.Struct, frozen=True):
    name: _Label
    value: _Label


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    last_updated_time: _Time
    progress_percentage: _Percent | None = None
    estimated_remaining_seconds: _Seconds | None = None
    metrics: Annotated[tuple[_Metric, ...], msgspec.Meta(max_length=256)] | None = None


class _Report(msgspec.Struct, frozen=True, rename="camel"):
    # Fields of later versions (statuses of initializers) are ignored, as the original does.
    trainer_status: _Status | None = None


_REPORTS = msgspec.json.Decoder(_Report)


def status_path(namespace: str, name: str) -> str:
    """The path that a job's reports are posted to."""
    return f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/{name}/status"


def progress_of(body: bytes) -> Progress | None:
    """The progress that a report tells, None where it tells nothing.

    Values of metrics are text on the wire; one that is no finite number is left out, and of two
    with one name the last holds. Raises :class:`ValueError` saying what is wrong with a report.
    """
    if len(body) > LIMIT:
        raise ValueError(f"a report has {LIMIT} bytes at most")
    try:
        status = _REPORTS.decode(body).trainer_status
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if status is None:
        return None
    return Progress(
        percentage=status.progress_percentage,
        seconds_left=status.estimated_remaining_seconds,
        metrics=_numbers(status.metrics or ()),
        updated=status.last_updated_time,
    )


def _numbers(metrics: tuple[_Metric, ...]) -> dict[str, float]:
    numbers = {one.name: _number(one.value) for one in metrics}
    return {name: value for name, value in numbers.items() if value is not None}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
