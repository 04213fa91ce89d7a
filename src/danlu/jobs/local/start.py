"""The start of a job: what is checked before, the keeper, and the supervisor's first word."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import anyio

from danlu.errors import DanluError, MachineError, OutsideError, UsageError
from danlu.jobs.local.state import Place, Verdict, decode, now
from danlu.jobs.types import JobView, Submission

__all__ = ["check_gpus", "check_volumes", "error_of", "first_view", "started"]

_LIMIT = 30.0


def first_view(submission: Submission) -> JobView:
    """A job before its supervisor said anything of it."""
    from danlu.training.registry import framework_of

    job = submission.job
    return JobView(
        name=job.name,
        kind=job.kind,
        framework=framework_of(job.kind).name,
        state="Pending",
        status=job.status,
        created=now(),
        directory=str(submission.directory),
        labels=submission.labels,
    )


def check_gpus(submission: Submission) -> None:
    """Raises :class:`MachineError` where a job asks for GPUs that it cannot be given here."""
    from danlu.jobs.local import gpus
    from danlu.jobs.local.pod import gpus_asked

    specs = submission.job.replicas.values()
    total = sum(gpus_asked(one.template) * one.replicas for one in specs)
    if not total:
        return
    containers = [one for spec in specs for one in spec.template["spec"]["containers"]]
    if any(
        gpus_asked({"spec": {"containers": [one]}}) and one.get("image") in submission.images
        for one in containers
    ):
        raise MachineError(
            "containers get no GPUs yet", hint="--host-python runs processes, which do"
        )
    there = len(gpus.present())
    if total > there:
        raise MachineError(
            f"the job asks for {total} GPUs, and this machine has {there}",
            hint="ask for fewer, or for none",
        )


def check_volumes(submission: Submission) -> None:
    """Raises :class:`UsageError` for a volume that this machine cannot make."""
    from danlu.jobs.local.volumes import sources

    for spec in submission.job.replicas.values():
        sources(spec.template.get("spec") or {}, submission.objects)


async def started(place: Place, lock: int, *, tied: bool = False) -> Verdict:
    """Start the keeper, which starts the supervisor, and wait for its word.

    A ``tied`` job ends with this process.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    tie = [os.pidfd_open(os.getpid())] if tied else []
    try:
        _spawn_keeper(place, writing, lock, *tie)
    finally:
        for one in (writing, *tie):
            os.close(one)
    os.set_blocking(reading, False)
    told = b""
    try:
        with anyio.move_on_after(_LIMIT):
            while True:
                await anyio.wait_readable(reading)
                piece = os.read(reading, 1 << 16)
                if not piece:
                    break
                told += piece
    finally:
        os.close(reading)
    if told:
        return decode(told, Verdict)
    reason = place.last_complaint() or "it said nothing"
    return Verdict(f"the job's supervisor did not start: {reason}", code=OutsideError.exit_code)


def _spawn_keeper(place: Place, ready: int, lock: int, *tie: int) -> None:
    log = os.open(place.complaints, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    streams = (nothing, log, log, ready, lock, *tie)
    # Above what they become: one must not be overwritten before it is copied itself.
    sources = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 16) for one in streams]
    actions = [(os.POSIX_SPAWN_DUP2, one, target) for target, one in enumerate(sources)]
    keeper = str(Path(__file__).parent / "keeper.py")
    command = [sys.executable, "-I", "-S", keeper, str(place.directory), "3", "4", sys.executable]
    command += ["5"] if tie else []
    try:
        pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions)
    finally:
        for one in (log, nothing, *sources):
            os.close(one)
    # It goes to the background at once.
    os.waitpid(pid, 0)


def error_of(verdict: Verdict) -> DanluError:
    """What a supervisor said that could not start."""
    kinds = {one.exit_code: one for one in (UsageError, MachineError, OutsideError)}
    return kinds.get(verdict.code, OutsideError)(verdict.error, hint=verdict.hint)
