"""Collect what replicas returned: from the operator's ConfigMap, or from termination messages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping

import msgspec

from danlu.jobs.kubernetes.objects import PodObject, ReportObject
from danlu.jobs.types import JobResult, JobView
from danlu.training.types import ReplicaId
from danlu.util.decoding import decode_json


class _TerminationMessage(msgspec.Struct):
    """A termination message written by ``danlu.replica_runtime``."""

    value: str = ""
    raised: str = ""


def collect_result(
    view: JobView,
    leader: ReplicaId,
    *,
    pods: Mapping[ReplicaId, PodObject],
    report: ReportObject | None,
) -> JobResult:
    """Return the result of a finished job; ``pods`` are the newest of its replicas.

    The ConfigMap wins over termination messages, which are shortened.
    """
    values = dict(_read_termination_messages(pods, "value"))
    raised = dict(_read_termination_messages(pods, "raised"))
    if report is not None:
        values |= dict(_read_config_map(report, "value."))
        raised |= dict(_read_config_map(report, "raised."))
    return JobResult(view, values.get(str(leader)), values, raised)


def _read_config_map(report: ReportObject, prefix: str) -> Iterator[tuple[str, bytes]]:
    for key, text in report.binary_data.items():
        if key.startswith(prefix):
            yield key.removeprefix(prefix), base64.b64decode(text)


def _read_termination_messages(
    pods: Mapping[ReplicaId, PodObject], field: str
) -> Iterator[tuple[str, bytes]]:
    for replica, pod in pods.items():
        for status in pod.status.container_statuses:
            terminated = status.state.terminated
            data = _decode_message(terminated.message, field) if terminated else b""
            if data:
                yield str(replica), data


def _decode_message(message: str, field: str) -> bytes:
    """Return a field of the message; empty if it was not written by danlu."""
    try:
        decoded = decode_json(message, _TerminationMessage)
        return base64.b64decode(getattr(decoded, field))
    except (msgspec.MsgspecError, binascii.Error, ValueError):
        return b""
