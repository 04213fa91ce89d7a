"""The jobs protocol: submit, watch, logs, stop, attach, result; the same for every place.

Values are frozen; what goes to disk or over a socket is msgspec JSON of exactly these.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from danlu.training.progress import Progress
from danlu.training.types import Job, JobStatus, ReplicaId

__all__ = [
    "Command",
    "Image",
    "JobView",
    "Jobs",
    "LogLine",
    "Progress",
    "ReplicaView",
    "Result",
    "Submission",
]


class Image(msgspec.Struct, frozen=True):
    """What containers of this machine are made of: an image of the store, by config digest."""

    digest: str
    name: str = ""


class Submission(msgspec.Struct, frozen=True):
    """A job to run, and in what.

    ``job`` is defaulted and checked. ``images`` maps the image of a container, as the manifest
    names it, to one of this machine's; a container whose image is not in it runs as a process of
    ``python`` (a path), in ``directory``. ``directory`` is the project: working directory of
    processes, mounted at ``/workspace`` in containers. ``objects`` are the further documents of the
    same file (ConfigMaps, Secrets), by kind and name. ``environment`` is added below the
    manifest's own variables, as are those below.

    ``files`` is a directory whose content is copied at the submission, and which the main container
    of every replica then finds, unchanged, in the directory that its variable ``DANLU_FILES``
    names; words of a command may say ``$(DANLU_FILES)``. ``value`` asks for results (see
    :class:`Result`), of the leader or of all: each pickles its own to the file which its variable
    ``DANLU_VALUE_FILE`` names, and what it raised to the one of ``DANLU_RAISED_FILE``. A ``tied``
    job is stopped when the process that submitted it is gone, however that ended.

    ``code`` are files by their path in the working directory, for places that do not see
    ``directory``: there they are copied into the working directory before a replica's program
    starts. Places that see it pass them over.
    """

    job: Job
    directory: Path
    images: Mapping[str, Image] = {}
    python: str = ""
    objects: Mapping[str, Mapping[str, Any]] = {}
    environment: Mapping[str, str] = {}
    labels: Mapping[str, str] = {}
    files: Path | None = None
    value: Literal["none", "leader", "all"] = "none"
    tied: bool = False
    code: Mapping[str, Path] = {}


class ReplicaView(msgspec.Struct, frozen=True):
    """One replica as a table shows it; the last attempt where there were several.

    ``cpu`` is in cores over the last interval, ``memory`` in bytes, both of the whole tree of its
    processes; ``gpus`` are the indexes it was given. ``waits`` says for what it waits. *Stopped*
    is one that was told to end: by a user, or because the job was over.
    """

    id: ReplicaId
    state: Literal["Waiting", "Pending", "Running", "Succeeded", "Failed", "Stopped"]
    attempt: int = 0
    restarts: int = 0
    exit_code: int | None = None
    reason: str = ""
    cpu: float | None = None
    memory: int | None = None
    gpus: tuple[int, ...] = ()
    pid: int | None = None
    host: str = ""
    waits: str = ""
    started: datetime | None = None
    finished: datetime | None = None


class JobView(msgspec.Struct, frozen=True):
    """A job at a moment: what was asked, how it stands, and its replicas in order.

    ``state`` is the latest condition's word, ``Waiting`` while it waits for something of this
    machine, and ``Lost`` where the supervisor died before the job's end. ``warnings`` are things
    the user should know (``resources: not enforced``). ``labels`` are those of the submission.
    """

    name: str
    kind: str
    framework: str
    state: str
    status: JobStatus
    replicas: tuple[ReplicaView, ...] = ()
    progress: Progress | None = None
    warnings: tuple[str, ...] = ()
    created: datetime | None = None
    directory: str = ""
    where: str = "local"
    labels: Mapping[str, str] = {}

    @property
    def finished(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.status.finished or self.state == "Lost"


class LogLine(msgspec.Struct, frozen=True):
    """One line of one replica, without its newline, exactly as it was written.

    ``number`` counts from 0 over all attempts of the replica. ``whole`` is False where the line
    was cut because it was too long, or the program ended before its newline.
    """

    replica: ReplicaId
    attempt: int
    number: int
    time: datetime
    data: bytes
    whole: bool = True


class Result(msgspec.Struct, frozen=True):
    """How a job ended: the view then, and the value the leader returned, pickled, if any.

    ``values`` are those of all replicas that left one, ``raised`` what replicas said that they
    raised (a pickled mapping of danlu.guest.call), both by the replica's name (``worker-0``).
    """

    view: JobView
    value: bytes | None = None
    values: Mapping[str, bytes] = {}
    raised: Mapping[str, bytes] = {}


class Command(msgspec.Struct, frozen=True):
    """What the last attempt at a replica ran, so that a person can run it by hand.

    ``environment`` is all that the job said (the user's variables and the framework's), in order;
    ``image`` the name of its image, empty for a process.
    """

    args: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    image: str = ""


class Jobs(Protocol):
    """One place where jobs run.

    Every method but ``submit`` raises :class:`danlu.errors.UsageError` for a job that is not
    there, naming those that are.
    """

    async def submit(self, submission: Submission) -> str:
        """Start a job and give its name, once its supervisor answers for it.

        Raises :class:`UsageError` for a name in use, :class:`MachineError` for what this machine
        cannot do (a container that asks for a GPU).
        """

    async def names(self) -> Sequence[str]:
        """All jobs there are, the newest first."""

    async def view(self, name: str) -> JobView:
        """A job as it stands now."""

    def watch(self, name: str) -> AsyncIterator[JobView]:
        """The job now and after every change; ends after the view that is finished."""

    def logs(
        self,
        name: str,
        *,
        replicas: Sequence[ReplicaId] = (),
        follow: bool = False,
        tail: int | None = None,
        newest: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Lines of these replicas (all of them), in order within each, each once.

        ``follow`` waits for more until the job is finished; ``tail`` begins so many lines before
        the end of each replica's log; ``newest`` may pass over lines where the reader cannot keep
        up with the replicas, never over the last ones.
        """

    async def command(self, name: str, replica: ReplicaId) -> Command:
        """What a replica ran last; :class:`UsageError` where it has not run yet."""

    async def stop(self, name: str, *, grace: float = 5.0) -> None:
        """End the job: SIGTERM, then SIGKILL after ``grace`` seconds. Its record stays."""

    async def remove(self, name: str) -> None:
        """Forget a finished job and its logs."""

    async def suspend(self, name: str, *, suspended: bool) -> None:
        """Suspend a job (its replicas end, nothing is lost of its record) or resume it."""

    async def scale(self, name: str, *, replicas: Mapping[str, int]) -> None:
        """Ask for other numbers of replicas, by type."""

    async def result(self, name: str) -> Result:
        """Wait for the end and give it."""
