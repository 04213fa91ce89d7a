"""The directory of a job on this machine: its layout, and reading and writing its files.

::

    NAME/submission.json   what was submitted (:class:`Submission`)
         settings.json     the supervisor's settings (:class:`SupervisorSettings`)
         status.json       the current state (:class:`JobView`), replaced on every change
         events.jsonl      the job's events, one :class:`EventRecord` per line
         commands/         the command of the last attempt at each replica
         logs/             output of the replicas (:mod:`.log_files`)
         files/            the framework's files, the agent with which MPI starts its workers, its
                           exec.sock, and control.sock, the supervisor's control socket
         sent/             files sent with the job (:mod:`.file_exchange`)
         claims/           the claims that the job creates (``volumeClaimPolicies``)
         results/          values returned or exceptions raised, a directory per replica
         reserve           preallocated disk space, for the last status of a job on a full disk
         supervisor.lock   locked while anything of the job runs; contains the supervisor's pid
         supervisor.log    stdout and stderr of the supervisor itself

Older versions wrote the same files, and their supervisors take the same requests. Names of fields
must not change.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from danlu.engine.supervisor_directory import SupervisorDirectory
from danlu.jobs.types import DEFAULT_GRACE, JobView, ReplicaCommand, Submission
from danlu.training.types import FinishPolicy, ReplicaId, RestartBackoff
from danlu.util.files import write_atomic
from danlu.util.json_codec import decode, encode
from danlu.util.locks import lock_is_held

T = TypeVar("T")

RESERVE_BYTES = 256 << 10

FINISH_TIMEOUT_SECONDS = 3600.0
"""How long the other replicas of a succeeded job may run on, unless the job sets a timeout."""


class SupervisorSettings(msgspec.Struct, frozen=True):
    """SupervisorSettings of a supervisor.

    Attributes:
        data: Like ``state`` and ``config`` a directory of :class:`danlu.util.paths.Paths`.
        grace: Seconds that a pod has to terminate unless it sets its own grace period.
        finish: How long other replicas may run on after the job has succeeded.
        sample: Seconds between measurements of resource usage.
        log_bytes: Size at which a log file is rotated; ``log_files`` rotated files are kept.
        ledger: File of :class:`~danlu.engine.resource_allocator.ResourceAllocator`; empty for
            the user's default.
    """

    data: str
    state: str
    config: str
    pace: RestartBackoff = RestartBackoff()
    grace: float = DEFAULT_GRACE
    finish: FinishPolicy = FinishPolicy(timeout=FINISH_TIMEOUT_SECONDS, stops_all=True)
    sample: float = 2.0
    log_bytes: int = 16 << 20
    log_files: int = 7
    ledger: str = ""


class EventRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event of a job, like a Kubernetes Event."""

    time: datetime
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class ControlRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request to a supervisor; ``do`` is ``stop``, ``suspend``, ``scale``, ``leave`` or ``exec``.

    ``exec`` runs a program next to the replica ``target``. Its standard streams are sent along
    (:mod:`danlu.engine.control_socket`), and it is stopped when the client disconnects.
    """

    do: str
    grace: float | None = None
    suspended: bool = False
    replicas: Mapping[str, int] = {}
    target: str = ""
    args: tuple[str, ...] = ()


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class JobDirectory(SupervisorDirectory):
    """The directory of one job."""

    @property
    def files(self) -> Path:
        """Directory of the framework's files."""
        return self.directory / "files"

    @property
    def control_socket(self) -> Path:
        """The supervisor's control socket, next to the framework's files, which containers see."""
        return self.files / "control.sock"

    @property
    def exec_socket(self) -> Path:
        """The socket of MPI's agent, which takes nothing but ``exec``."""
        return self.files / "exec.sock"

    @property
    def sent_files(self) -> Path:
        """Directory of the files sent with the job."""
        return self.directory / "sent"

    @property
    def claims(self) -> Path:
        """Directory of the claims that are deleted with the job."""
        return self.directory / "claims"

    def results(self, replica: ReplicaId) -> Path:
        """Return the directory for what a replica returns or raises."""
        return self.directory / "results" / str(replica)

    @property
    def status(self) -> Path:
        """File with the current state."""
        return self.directory / "status.json"

    @property
    def reserve(self) -> Path:
        """File that reserves disk space."""
        return self.directory / "reserve"

    def record_supervisor_pid(self) -> None:
        """Record this process as the supervisor."""
        self.lock.write_text(str(os.getpid()))

    def kill_supervisor(self) -> None:
        """Kill the supervisor if it is running."""
        with suppress(FileNotFoundError, ValueError, ProcessLookupError):
            # Process ids are reused: only while the lock is held is the number that of the
            # supervisor.
            if lock_is_held(self.lock):
                os.kill(int(self.lock.read_text()), signal.SIGKILL)

    def read_submission(self) -> Submission:
        """Read what was submitted."""
        return decode((self.directory / "submission.json").read_bytes(), Submission)

    def write_submission(self, submission: Submission) -> None:
        """Write what was submitted."""
        (self.directory / "submission.json").write_bytes(encode(submission))

    def read_settings(self) -> SupervisorSettings:
        """Read the supervisor's settings."""
        return decode((self.directory / "settings.json").read_bytes(), SupervisorSettings)

    def write_settings(self, settings: SupervisorSettings) -> None:
        """Write the supervisor's settings."""
        (self.directory / "settings.json").write_bytes(encode(settings))

    def read_view(self) -> JobView:
        """Read the state as last written."""
        return decode(self.status.read_bytes(), JobView)

    def write_view(self, view: JobView) -> None:
        """Replace the state atomically."""
        write_atomic(self.status, encode(view), sync=False)

    def read_command(self, replica: ReplicaId) -> ReplicaCommand:
        """Read a replica's last command; raises :class:`FileNotFoundError` if it never ran."""
        path = self.directory / "commands" / f"{replica}.json"
        return decode(path.read_bytes(), ReplicaCommand)

    def write_command(self, replica: ReplicaId, command: ReplicaCommand) -> None:
        """Write a replica's current command, readable by its owner only."""
        path = self.directory / "commands" / f"{replica}.json"
        write_atomic(path, encode(command), mode=0o600, sync=False)

    def append_event(self, event: EventRecord) -> None:
        """Append an event, completely or not at all."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self.directory / "events.jsonl", flags, 0o644)
        try:
            size, data = os.fstat(descriptor).st_size, encode(event) + b"\n"
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
            except OSError:
                # The next event would continue an incomplete line.
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)

    def read_events(self) -> tuple[EventRecord, ...]:
        """Read all events, in order."""
        try:
            lines = (self.directory / "events.jsonl").read_bytes().splitlines()
        except FileNotFoundError:
            return ()
        return tuple(decode(line, EventRecord) for line in lines)

    def reserve_space(self) -> None:
        """Preallocate disk space for the job's last status and events."""
        with open(self.reserve, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)

    def release_space(self, *, all: bool) -> None:
        """Release half of the preallocated space, or all of it."""
        with suppress(OSError):
            if all:
                self.reserve.unlink(missing_ok=True)
            elif self.reserve.stat().st_size > RESERVE_BYTES // 2:
                os.truncate(self.reserve, RESERVE_BYTES // 2)
