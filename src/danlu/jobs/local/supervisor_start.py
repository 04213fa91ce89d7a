"""Start a job: check what it needs, start the reaper, and wait for the supervisor's report."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from danlu.engine.supervisor_directory import StartReport
from danlu.errors import DanluError, MachineError, OutsideError, UsageError
from danlu.jobs.local.host_resources import available_gpus
from danlu.jobs.local.job_directory import JobDirectory, utc_now
from danlu.jobs.local.pod import requested_gpus
from danlu.jobs.local.volumes import resolve_volumes
from danlu.jobs.types import JobView, Submission
from danlu.training.registry import find_framework
from danlu.util.json_codec import decode
from danlu.util.spawn import spawn_process

_START_TIMEOUT = 30.0
_CHUNK_SIZE = 1 << 16


def initial_view(submission: Submission) -> JobView:
    """Return the view of a job whose supervisor has not published one yet."""
    job = submission.job
    return JobView(
        name=job.name,
        kind=job.kind,
        framework=find_framework(job.kind).name,
        state="Pending",
        status=job.status,
        created=utc_now(),
        directory=str(submission.directory),
        labels=submission.labels,
    )


def check_gpus(submission: Submission) -> None:
    """Raise :class:`MachineError` if a job requests GPUs that this machine cannot provide."""
    specs = submission.job.replicas.values()
    total = sum(requested_gpus(spec.template) * spec.replicas for spec in specs)
    if not total:
        return
    available = len(available_gpus())
    if total > available:
        raise MachineError(
            f"the job requests {total} GPUs, but this machine has {available}",
            hint="request fewer, or none with --gpu 0",
        )


def check_volumes(submission: Submission) -> None:
    """Raise :class:`UsageError` for a volume that this machine cannot provide."""
    for spec in submission.job.replicas.values():
        resolve_volumes(spec.template.get("spec") or {}, submission.objects)


async def start_supervisor(job_dir: JobDirectory, lock: int, *, tied: bool = False) -> StartReport:
    """Start the reaper, which starts the supervisor, and wait for the supervisor's report.

    With ``tied`` the job is stopped when this process exits.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    submitter = [os.pidfd_open(os.getpid())] if tied else []
    try:
        _spawn_reaper(job_dir, writing, lock, *submitter)
    finally:
        for descriptor in (writing, *submitter):
            # Only the supervisor's copy of the pipe is left, so reading ends when it reports or
            # dies.
            os.close(descriptor)
    os.set_blocking(reading, False)
    report = b""
    try:
        with anyio.move_on_after(_START_TIMEOUT):
            while True:
                await anyio.wait_readable(reading)
                data = os.read(reading, _CHUNK_SIZE)
                if not data:
                    break
                report += data
    finally:
        os.close(reading)
    if report:
        return decode(report, StartReport)
    reason = job_dir.last_error() or "it printed no error"
    return StartReport(f"the job's supervisor did not start: {reason}", code=OutsideError.exit_code)


def _spawn_reaper(job_dir: JobDirectory, ready: int, lock: int, *submitter: int) -> None:
    log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    log = os.open(job_dir.supervisor_log, log_flags, 0o600)
    stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    reaper = str(Path(__file__).parent / "reaper.py")
    # 3, 4 and 5 are the descriptors ready, lock and submitter.
    command = [sys.executable, "-I", "-S", reaper, str(job_dir.directory), "3", "4", sys.executable]
    command += ["5"] if submitter else []
    try:
        pid = spawn_process(command, (stdin, log, log, ready, lock, *submitter))
    finally:
        for descriptor in (log, stdin):
            os.close(descriptor)
    # The reaper forks and its first process exits immediately.
    os.waitpid(pid, 0)


def to_error(result: StartReport) -> DanluError:
    """Return the error that a supervisor reported."""
    types = {type.exit_code: type for type in (UsageError, MachineError, OutsideError)}
    error = types.get(result.code, OutsideError)
    return error(result.error, hint=result.hint, details=result.details)
