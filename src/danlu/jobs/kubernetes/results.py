"""What replicas left: in the operator's ConfigMap, else in the last word of their containers."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping

import msgspec

from danlu.jobs.kubernetes.objects import PodObject, ReportObject
from danlu.jobs.types import JobView, Result
from danlu.training.types import ReplicaId

__all__ = ["result_of"]


class _LastWord(msgspec.Struct):
    """A termination message of danlu's guest: see ``danlu.guest.deliver``."""

    value: str = ""
    raised: str = ""


def result_of(
    view: JobView,
    leader: ReplicaId,
    *,
    pods: Mapping[ReplicaId, PodObject],
    report: ReportObject | None,
) -> Result:
    """The result of a job that ended as ``view`` says; ``pods`` are the newest of its replicas."""
    values = dict(_said(pods, "value"))
    raised = dict(_said(pods, "raised"))
    if report is not None:
        values |= dict(_kept(report, "value."))
        raised |= dict(_kept(report, "raised."))
    return Result(view, values.get(str(leader)), values, raised)


def _kept(report: ReportObject, prefix: str) -> Iterator[tuple[str, bytes]]:
    for key, text in report.binary_data.items():
        if key.startswith(prefix):
            yield key.removeprefix(prefix), base64.b64decode(text)


def _said(pods: Mapping[ReplicaId, PodObject], word: str) -> Iterator[tuple[str, bytes]]:
    for replica, pod in pods.items():
        for status in pod.status.container_statuses:
            ended = status.state.terminated
            data = _opened(ended.message, word) if ended else b""
            if data:
                yield str(replica), data


def _opened(message: str, word: str) -> bytes:
    """What the message says under a word; nothing where it is of somebody else."""
    try:
        return base64.b64decode(getattr(msgspec.json.decode(message, type=_LastWord), word))
    except (msgspec.MsgspecError, binascii.Error, ValueError):
        return b""
