"""The directory of a job on this machine: what is in it, and how it is read and written.

::

    NAME/submission.json   what was asked for
         settings.json     how its supervisor works (:class:`Settings`)
         status.json       how it stands (:class:`JobView`), replaced whenever that changes
         events.jsonl      what was told of it, one :class:`EventRecord` a line
         commands/         what the last attempt at each replica ran
         logs/             output of its replicas (:mod:`.logs`)
         files/            the framework's files, the agent that MPI starts workers with, and
                           control.sock, where the supervisor takes orders (:mod:`.control`)
         sent/             the files that came with it (:mod:`.handed`)
         results/          what its replicas returned or raised, a directory each
         supervisor.lock   held as long as anything of the job runs; the supervisor's number
         supervisor.log    what the supervisor itself complained about
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from danlu.jobs.types import Command, JobView, Submission
from danlu.training.types import Pace, ReplicaId
from danlu.util.files import write_atomic

__all__ = [
    "EventRecord",
    "Place",
    "Settings",
    "Verdict",
    "decode",
    "encode",
    "held",
    "now",
    "short_name",
]

T = TypeVar("T")


class Settings(msgspec.Struct, frozen=True):
    """How a supervisor works: where danlu's own things are, and its measures.

    ``data``, ``state`` and ``config`` are the directories of :class:`danlu.util.paths.Paths`;
    ``ledger`` is the file of what is handed out (empty: the user's own of this machine).
    ``grace`` and ``sample`` are seconds, ``log_bytes`` the size a log file is rotated at, and
    ``log_files`` how many older ones are kept.
    """

    data: str
    state: str
    config: str
    pace: Pace = Pace()
    grace: float = 5.0
    sample: float = 2.0
    log_bytes: int = 16 << 20
    log_files: int = 7
    ledger: str = ""


class EventRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that was told of a job, and when."""

    time: datetime
    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class Verdict(msgspec.Struct, frozen=True):
    """What a supervisor says at its start: nothing, or why it cannot; ``code`` is an exit code."""

    error: str = ""
    hint: str = ""
    code: int = 0


def _to_json(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value).__name__)


def _from_json(type: type, value: Any) -> object:
    if type is Path:
        return Path(value)
    raise NotImplementedError(type.__name__)


def encode(value: object) -> bytes:
    """JSON of a value of the contracts (paths become text)."""
    return msgspec.json.encode(value, enc_hook=_to_json)


def decode(data: bytes, type: type[T]) -> T:
    """The value again; raises :class:`msgspec.ValidationError` where it is not one."""
    return msgspec.json.decode(data, type=type, dec_hook=_from_json)


def now() -> datetime:
    """This moment, in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of one job."""

    directory: Path

    @property
    def name(self) -> str:
        """The job's name."""
        return self.directory.name

    @property
    def lock(self) -> Path:
        """Held by the supervisor and its keeper."""
        return self.directory / "supervisor.lock"

    @property
    def logs(self) -> Path:
        """The replicas' output."""
        return self.directory / "logs"

    @property
    def files(self) -> Path:
        """The framework's files."""
        return self.directory / "files"

    @property
    def sent(self) -> Path:
        """What was sent with the job."""
        return self.directory / "sent"

    def results(self, replica: ReplicaId) -> Path:
        """Where a replica puts what it returns or raises."""
        return self.directory / "results" / str(replica)

    @property
    def status(self) -> Path:
        """How the job stands."""
        return self.directory / "status.json"

    @property
    def complaints(self) -> Path:
        """What the supervisor printed."""
        return self.directory / "supervisor.log"

    def last_complaint(self) -> str:
        """The last line of what the supervisor complained about; empty where it did not."""
        try:
            lines = self.complaints.read_text(errors="replace").strip().splitlines()
        except FileNotFoundError:
            return ""
        return lines[-1] if lines else ""

    def name_supervisor(self) -> None:
        """Say that this process is the supervisor."""
        self.lock.write_text(str(os.getpid()))

    def kill_supervisor(self) -> None:
        """Kill the supervisor, if there is one."""
        with suppress(FileNotFoundError, ValueError, ProcessLookupError):
            if held(self.lock):
                os.kill(int(self.lock.read_text()), signal.SIGKILL)

    def read_submission(self) -> Submission:
        """What was asked for."""
        return decode((self.directory / "submission.json").read_bytes(), Submission)

    def write_submission(self, submission: Submission) -> None:
        """Keep what was asked for."""
        (self.directory / "submission.json").write_bytes(encode(submission))

    def read_settings(self) -> Settings:
        """How its supervisor is to work."""
        return decode((self.directory / "settings.json").read_bytes(), Settings)

    def write_settings(self, settings: Settings) -> None:
        """Keep how its supervisor is to work."""
        (self.directory / "settings.json").write_bytes(encode(settings))

    def read_view(self) -> JobView:
        """How the job stood when that was last written."""
        return decode(self.status.read_bytes(), JobView)

    def write_view(self, view: JobView) -> None:
        """Say how the job stands: readers see the old view or the new one."""
        write_atomic(self.status, encode(view), sync=False)

    def read_command(self, replica: ReplicaId) -> Command:
        """What a replica ran last; raises :class:`FileNotFoundError` where it has not run."""
        return decode((self.directory / "commands" / f"{replica}.json").read_bytes(), Command)

    def write_command(self, replica: ReplicaId, command: Command) -> None:
        """Keep what a replica runs now."""
        write_atomic(
            self.directory / "commands" / f"{replica}.json", encode(command), mode=0o600, sync=False
        )

    def append_event(self, event: EventRecord) -> None:
        """Tell something."""
        with open(self.directory / "events.jsonl", "ab") as file:
            file.write(encode(event) + b"\n")

    def read_events(self) -> tuple[EventRecord, ...]:
        """All that was told, in order."""
        try:
            lines = (self.directory / "events.jsonl").read_bytes().splitlines()
        except FileNotFoundError:
            return ()
        return tuple(decode(line, EventRecord) for line in lines)


def held(lock: Path) -> bool:
    """Whether somebody holds the exclusive ``lock``; a lock that is not there is free."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared, so that two who look at one time do not take one another for the holder.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Another name of the socket ``path``: an address holds 107 bytes, a directory's may be more.

    The name holds within the block, for this process.
    """
    opened = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}/{path.name}"
    finally:
        os.close(opened)
