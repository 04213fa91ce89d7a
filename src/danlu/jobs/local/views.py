"""How a job stands, as a value to show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from danlu.jobs.local.attempt import Attempt
from danlu.jobs.local.topology import members, pod_name
from danlu.jobs.types import JobView, ReplicaView
from danlu.training.types import Job, JobStatus, Phase, ReplicaId

__all__ = ["Used", "last_word", "lost", "replica_views", "state_of"]

State = Literal["Waiting", "Pending", "Running", "Succeeded", "Failed", "Stopped"]


class Used(msgspec.Struct, frozen=True):
    """What a replica used over the last interval: cores, and bytes at its end."""

    cpu: float | None
    memory: int


def replica_views(
    job: Job, latest: Mapping[ReplicaId, Attempt], used: Mapping[str, Used]
) -> tuple[ReplicaView, ...]:
    """A view of each replica that the job is to have, in order."""
    return tuple(
        _of(job, id, latest[id], used.get(latest[id].uid)) if id in latest else _none(job, id)
        for id in members(job)
    )


def _none(job: Job, id: ReplicaId) -> ReplicaView:
    record = job.status.record(id)
    waits = "its next attempt" if record.retry_at else ""
    waits = waits or ("the job to be resumed" if job.run_policy.suspend else "")
    return ReplicaView(id, "Waiting" if waits else "Pending", host=pod_name(job, id), waits=waits)


def _of(job: Job, id: ReplicaId, attempt: Attempt, used: Used | None) -> ReplicaView:
    record, exit = job.status.record(id), attempt.exit
    alive = exit is None and used is not None
    return ReplicaView(
        id=id,
        state=_state(attempt),
        attempt=attempt.number,
        restarts=record.restarts,
        exit_code=None if exit is None else exit.code,
        reason=exit.reason if exit and exit.code else "",
        cpu=used.cpu if used and alive else None,
        memory=used.memory if used and alive else None,
        gpus=attempt.gpus,
        pid=attempt.running.pid if attempt.running else None,
        host=pod_name(job, id),
        waits=attempt.waits,
        started=attempt.started,
        finished=attempt.finished,
    )


_STATES: Mapping[Phase, State] = {
    Phase.PENDING: "Pending",
    Phase.RUNNING: "Running",
    Phase.SUCCEEDED: "Succeeded",
    Phase.FAILED: "Failed",
}


def _state(attempt: Attempt) -> State:
    if attempt.waits:
        return "Waiting"
    if attempt.phase is Phase.FAILED and attempt.stopped:
        return "Stopped"
    return _STATES[attempt.phase]


def state_of(job: Job, latest: Mapping[ReplicaId, Attempt]) -> str:
    """A job's state in a word."""
    if not job.status.finished and any(one.waits for one in latest.values()):
        return "Waiting"
    return last_word(job.status)


def last_word(status: JobStatus) -> str:
    """The type of the latest condition that is true."""
    true = [one.type for one in status.conditions if one.status == "True"]
    return str(true[-1]) if true else "Pending"


def lost(view: JobView, why: str) -> JobView:
    """A job whose supervisor is dead, and with it all that ran; ``why`` is its last word."""
    replicas = tuple(
        msgspec.structs.replace(one, state="Failed", reason="Lost", pid=None, waits="")
        if one.state in ("Running", "Pending", "Waiting")
        else one
        for one in view.replicas
    )
    said = (f"the supervisor died: {why}",) if why else ()
    warnings = (*view.warnings, *said)
    return msgspec.structs.replace(view, state="Lost", replicas=replicas, warnings=warnings)
