"""Parse progress reports of training programs: Kubeflow Trainer's training-progress protocol.

A program posts JSON to the address in :data:`SERVER_URL` (``trainer.kubeflow.org/v1alpha1``,
feature ``TrainJobStatus``, KEP-2779). The limits are those of its ``pkg/statusserver`` and of the
CRD. Transformers' ``Trainer`` and the Kubeflow SDK use the protocol if the variable is set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec

from danlu.util.decoding import convert_value

SERVER_URL = "KUBEFLOW_TRAINER_SERVER_URL"
CA_CERT = "KUBEFLOW_TRAINER_SERVER_CA_CERT"
"""The variable with the *path* of the CA certificates to verify the server with."""
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
"""The variable with the *path* of the token; programs reread it, because it may be rotated."""

MAX_REPORT_BYTES = 1 << 16
"""The size limit of a report (statusserver's ``maxBodySize``)."""

_INT32 = 2**31 - 1
_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
_Seconds = Annotated[int, msgspec.Meta(ge=0, le=_INT32)]
_Label = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Time = Annotated[datetime, msgspec.Meta(tz=True)]


Points = tuple[tuple[float, float], ...]
"""The values of a metric over time: pairs of seconds since the epoch and value."""


class TrainingProgress(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The progress a job reported (``trainerStatus`` of the training-progress protocol).

    ``metrics`` has the last value of each metric. ``history`` has all values one replica reported
    so far (in a single report: since the previous one), downsampled so that extremes are kept.
    """

    percentage: int | None = msgspec.field(default=None, name="progressPercentage")
    seconds_left: int | None = msgspec.field(default=None, name="estimatedRemainingSeconds")
    metrics: Mapping[str, float] = {}
    updated: datetime | None = msgspec.field(default=None, name="lastUpdatedTime")
    history: Mapping[str, Points] = {}


class _MetricEntry(msgspec.Struct, frozen=True):
    name: _Label
    value: _Label


class _TrainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    last_updated_time: _Time
    progress_percentage: _Percent | None = None
    estimated_remaining_seconds: _Seconds | None = None
    metrics: Annotated[tuple[_MetricEntry, ...], msgspec.Meta(max_length=256)] | None = None


class _ReportBody(msgspec.Struct, frozen=True, rename="camel"):
    # Fields of later versions (statuses of initializers) are ignored, as in the original.
    trainer_status: _TrainerStatus | None = None
    # Of danlu.report alone (danlu.replica_runtime.report).
    danlu_points: dict[_Label, Points] = {}


_REPORTS = msgspec.json.Decoder(_ReportBody)


def status_path(namespace: str, name: str) -> str:
    """Return the URL path that a job's reports are posted to."""
    return f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/{name}/status"


def parse_progress(body: bytes) -> TrainingProgress | None:
    """Parse a report; None if it contains no progress.

    Metric values are strings on the wire. Values that are not finite numbers are dropped, and the
    last of several with one name wins. Raises :class:`ValueError` if the report is invalid.
    """
    if len(body) > MAX_REPORT_BYTES:
        raise ValueError(f"report exceeds {MAX_REPORT_BYTES} bytes")
    try:
        return _describe_progress(_REPORTS.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def read_trainer_status(status: Mapping[str, Any]) -> TrainingProgress | None:
    """Return the progress in the status of a TrainJob; None if it is missing or invalid."""
    try:
        return _describe_progress(convert_value(status, _ReportBody))
    except msgspec.MsgspecError:
        return None


def _describe_progress(report: _ReportBody) -> TrainingProgress | None:
    status = report.trainer_status
    if status is None:
        return None
    metrics, updated = _metric_values(status.metrics or ()), status.last_updated_time
    return TrainingProgress(
        percentage=status.progress_percentage,
        seconds_left=status.estimated_remaining_seconds,
        metrics=metrics,
        updated=updated,
        history={name: tuple(sorted(line)) for name, line in report.danlu_points.items()}
        or {name: ((updated.timestamp(), value),) for name, value in metrics.items()},
    )


def _metric_values(metrics: tuple[_MetricEntry, ...]) -> dict[str, float]:
    numbers = {metric.name: _finite_number(metric.value) for metric in metrics}
    return {name: value for name, value in numbers.items() if value is not None}


def _finite_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
