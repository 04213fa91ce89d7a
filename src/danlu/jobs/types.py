"""The interface of job backends: submit, watch, read logs, stop and get results, on any target.

All values are frozen. They are written as JSON to job directories and ConfigMaps, where older
versions wrote them, too, so names of fields must not change.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from danlu.training.messages import name_some
from danlu.training.pod_template import pod_spec
from danlu.training.progress import TrainingProgress
from danlu.training.types import Job, JobStatus, ReplicaId

KILLED = "Killed"
"""Reason of a *Stopped* replica that did not terminate in time and was killed (SIGKILL)."""


MAX_LINE_BYTES = 64 << 10
"""Longer lines of logs are cut into parts of this size."""

DEFAULT_GRACE = 30.0
"""Seconds that a pod has to terminate unless it says otherwise (the default of Kubernetes)."""


class ContainerImage(msgspec.Struct, frozen=True):
    """An image of this machine's store, by config digest; of a cluster, by name.

    ``architecture`` and ``level`` are what its programs need of the processor, if known.
    """

    digest: str
    name: str = ""
    architecture: str = ""
    level: str = ""


class Submission(msgspec.Struct, frozen=True):
    """A job to run, and what to run it in.

    Attributes:
        job: With defaults applied, and validated.
        directory: The project: working directory of processes, ``/workspace`` in containers.
        images: Maps the image of a container in the manifest to one of this machine's. A container
            whose image is not in it runs as a process in ``directory``.
        python: Path of the interpreter that processes use.
        objects: Other documents of the same file (ConfigMaps, Secrets), by kind and name.
        manifests: What a cluster gets instead of ``job``: training runtimes, and a TrainJob.
        environment: Variables that those of the manifest override.
        files: A directory that is copied at submission. The main container of every replica finds
            the copy, read-only, in the directory named by the variable ``DANLU_FILES``; a command
            may contain ``$(DANLU_FILES)``.
        value: Which replicas return a value (see :class:`JobResult`). Each writes it to the file
            named by ``DANLU_VALUE_FILE``, and exceptions to that of ``DANLU_RAISED_FILE``.
        trusted: Values are pickles, because the user trusts the environment; otherwise they use
            the encoding of :mod:`danlu.replica_runtime.encoding`. None for jobs of older versions,
            which did not record it.
        displays: The leader writes its displays to the file named by ``DANLU_DISPLAY_FILE``; on
            this machine only.
        tied: The job is stopped when the submitting process exits, however it does.
        code: Files by path in the working directory, for targets that cannot see ``directory``;
            they are copied there before a replica's program starts. Other targets ignore them.
        queue: The cluster's queue in which the job waits, as ``--queue`` names it.
        concurrency: How many such jobs of a sweep run at the same time and share the cores.
    """

    job: Job
    directory: Path
    images: Mapping[str, ContainerImage] = {}
    python: str = ""
    objects: Mapping[str, Mapping[str, Any]] = {}
    manifests: tuple[Mapping[str, Any], ...] = ()
    environment: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    files: Path | None = None
    value: Literal["none", "leader", "all"] = "none"
    trusted: bool | None = None
    displays: bool = False
    tied: bool = False
    code: Mapping[str, Path] = {}
    queue: str = ""
    concurrency: int = 1


def job_notes(status: JobStatus) -> tuple[str, ...]:
    """Return remarks about the replicas of a succeeded job."""
    return status.finishing.notes if status.finishing is not None else ()


def longest_grace(job: Job, *, default: float = DEFAULT_GRACE) -> float:
    """Return the longest ``terminationGracePeriodSeconds`` of the job's pods, in seconds."""
    graces = []
    for spec in job.replicas.values():
        grace = pod_spec(spec.template).get("terminationGracePeriodSeconds")
        graces.append(default if grace is None else float(grace))
    return max(graces, default=default)


def killed_sentence(replicas: Iterable[ReplicaId]) -> str:
    """Return which replicas were killed when their job was stopped; empty if none."""
    killed = sorted(replicas)
    verb = "were" if len(killed) > 1 else "was"
    return f"{name_some(killed)} had not ended and {verb} killed" if killed else ""


ReplicaStateName = Literal["Waiting", "Pending", "Running", "Succeeded", "Failed", "Stopped"]


class ReplicaView(msgspec.Struct, frozen=True):
    """One replica as shown in tables: its last attempt.

    Attributes:
        state: *Stopped* was ended by the user, or because the job was finished.
        cpu: Cores over the last interval, ``memory`` bytes, of all its processes.
        gpus: Indexes of the GPUs assigned to it.
        gpu_utilization: Mean share of time in which these computed, 0 to 1; None if unknown, and
            ``gpu_memory`` the bytes in use on them.
        message: Why a replica failed, if its program did not say it: it could not be started.
        waits: What a replica that is not running waits for; on a cluster it begins with the reason
            of Kubernetes, verbatim.
    """

    id: ReplicaId
    state: ReplicaStateName
    attempt: int = 0
    restarts: int = 0
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    cpu: float | None = None
    memory: int | None = None
    gpus: tuple[int, ...] = ()
    gpu_utilization: float | None = None
    gpu_memory: int | None = None
    pid: int | None = None
    host: str = ""
    waits: str = ""
    started: datetime | None = None
    finished: datetime | None = None


class JobView(msgspec.Struct, frozen=True):
    """A snapshot of a job, with its replicas in order.

    Attributes:
        state: Type of the latest condition, or ``Waiting`` (for resources of this machine),
            ``Finishing`` (succeeded, other replicas still run), ``Stopping``, ``Suspending``
            (replicas still save), or ``Lost`` (the supervisor died before the job's end).
        warnings: What the user should know (``resources: not enforced: …``).
        where: The target.
        labels: Those of the submission.
    """

    name: str
    kind: str
    framework: str
    state: str
    status: JobStatus
    replicas: tuple[ReplicaView, ...] = ()
    progress: TrainingProgress | None = None
    warnings: tuple[str, ...] = ()
    created: datetime | None = None
    directory: str = ""
    where: str = "local"
    labels: Mapping[str, str] = {}

    @property
    def finished(self) -> bool:
        """Whether the job is in a final state."""
        return self.status.finished or self.state == "Lost"


class LogLine(msgspec.Struct, frozen=True):
    """One line of a replica's log: its raw bytes, without the newline.

    ``number`` counts from 0 over all attempts of the replica. ``whole`` is False if the line was
    cut because it was too long, the program ended before its newline, or it is a state of a
    progress bar: the next one begins with a carriage return.
    """

    replica: ReplicaId
    attempt: int
    number: int
    time: datetime
    data: bytes
    whole: bool = True

    @property
    def continues(self) -> bool:
        """Whether the line was cut because it is too long: its rest is the next one."""
        return not self.whole and len(self.data) >= MAX_LINE_BYTES

    @property
    def is_transient(self) -> bool:
        """Whether it has no end yet, as a state of a progress bar."""
        return not self.whole and not self.continues

    def overwrites(self, previous: object) -> bool:
        """Return whether it replaces ``previous`` on a terminal: the next state of a bar."""
        return (
            isinstance(previous, LogLine)
            and previous.is_transient
            and previous.replica == self.replica
            and self.data.startswith(b"\r")
        )


class JobResult(msgspec.Struct, frozen=True):
    """The result of a finished job.

    ``value`` is the leader's encoded value, if any. ``values`` are those of all replicas, and
    ``raised`` their exceptions, by replica name (``worker-0``), as written by
    :mod:`danlu.replica_runtime`. ``trusted`` is whether pickles in them may be loaded
    (SECURITY.md).
    """

    view: JobView
    value: bytes | None = None
    values: Mapping[str, bytes] = {}
    raised: Mapping[str, bytes] = {}
    trusted: bool = False


class ReplicaCommand(msgspec.Struct, frozen=True):
    """The command of a replica's last attempt, so that a person can run it by hand.

    ``environment`` are the variables of the user and of the framework, in order; ``image`` is the
    image's name, empty for a process.
    """

    args: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    image: str = ""


class JobBackend(Protocol):
    """A target that runs jobs: this machine, or a namespace of a cluster.

    All methods except ``submit`` raise :class:`danlu.errors.UsageError`, naming existing jobs, if
    the job does not exist.
    """

    async def submit(self, submission: Submission) -> str:
        """Start a job, and return its name as soon as it accepts requests.

        Raises :class:`UsageError` if the name is in use, :class:`MachineError` if this machine
        cannot run the job (GPUs in containers).
        """

    async def names(self) -> Sequence[str]:
        """Return the names of all jobs, newest first."""

    async def view(self, name: str) -> JobView:
        """Return the current view of a job."""

    def watch(self, name: str) -> AsyncIterator[JobView]:
        """Yield the job's view now and after every change; the last one is finished."""

    def logs(
        self,
        name: str,
        *,
        replicas: Sequence[ReplicaId] = (),
        follow: bool = False,
        tail: int | None = None,
        newest: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Yield the lines of these replicas (default: all), each once and in order per replica.

        ``follow`` waits for more lines until the job is finished. ``tail`` starts that many lines
        before the end of each replica's log. With ``newest``, lines may be skipped if the consumer
        cannot keep up, but never the last ones.
        """

    async def command(self, name: str, replica: ReplicaId) -> ReplicaCommand:
        """Return a replica's last command; raises :class:`UsageError` if it has not run yet."""

    async def stop(self, name: str, *, grace: float | None = None) -> None:
        """Stop the job: its stop signal, then SIGKILL after ``grace`` seconds. Its record is kept.

        By default each replica has its pod's ``terminationGracePeriodSeconds``, or 30 seconds.
        Another call with a shorter ``grace`` takes effect while the job is being stopped.
        """

    async def remove(self, name: str) -> None:
        """Delete a finished job and its logs."""

    async def suspend(self, name: str, *, suspended: bool) -> None:
        """Suspend a job, which stops its replicas but keeps its record, or resume it."""

    async def scale(self, name: str, *, replicas: Mapping[str, int]) -> None:
        """Change the number of replicas, by type."""

    async def result(self, name: str) -> JobResult:
        """Wait for the end of a job and return its result."""
