"""Copy a project to another machine, and what was made there back."""

from __future__ import annotations

import hashlib
import os
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from danlu.commands.remote.program_transfer import MISSING_PROGRAM, copy_program, program_script
from danlu.commands.remote.remote_host import SSH_FAILED, RemoteHost, raise_interrupt
from danlu.engine.project_files import (
    CONFLICT_SUFFIX,
    ChangeList,
    FileRecord,
    ProjectOffer,
    ProjectRequest,
    ProjectResult,
    decode_value,
    describe_path,
    encode_value,
    list_files,
    read_contents,
    read_message,
    write_contents,
    write_message,
)
from danlu.errors import DanluError, OutsideError, TemporaryError, UsageError
from danlu.util.files import write_atomic
from danlu.util.paths import Paths
from danlu.util.process_activity import finish_program, kill_program, limit_transfer
from danlu.util.sanitize import escape_unprintable

T = TypeVar("T")

_MODULE = "danlu.commands.remote.receive"


class SentProject(msgspec.Struct, frozen=True):
    """The project's directory on the other machine, how many files were sent, and conflicts."""

    directory: str
    sent: int
    conflicts: tuple[str, ...] = ()


class FetchedFiles(msgspec.Struct, frozen=True):
    """Paths of files that were written here; ``conflicts`` got another name."""

    written: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()


class ProjectLink:
    """The connection of a project on this machine with its copy on another one."""

    def __init__(self, host: RemoteHost, project: Path, paths: Paths) -> None:
        if project in (Path.home(), Path(project.anchor)):
            raise UsageError(
                f"{project} is not a project: all of it would be copied to {host.name}",
                hint="change to a project's directory",
            )
        self._host = host
        self._cache = paths.cache
        self._project = project
        # One machine may have copies of equal paths of several others.
        identity = f"{socket.gethostname()}\0{os.getuid()}\0{project}"
        self._key = hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:16]
        name = hashlib.sha256(host.url.encode()).hexdigest()[:8]
        self._records_file = paths.state / "remote" / f"{self._key}-{name}.json"

    @property
    def directory(self) -> str:
        """The copy's directory below the home directory there, as a word of a shell script."""
        path = f"/.local/share/danlu/projects/{self._key}/{self._project.name}"
        return f'"$HOME"{shlex.quote(path)}'

    def send_project(self) -> SentProject:
        """Copy files that were changed here since the last time.

        Raises :class:`~danlu.errors.DanluError` if the machine cannot be reached or refuses.
        """
        offer = ProjectOffer(self._key, self._project.name, list_files(self._project))

        def exchange(source: BinaryIO, sink: BinaryIO) -> SentProject:
            write_message(sink, offer)
            request = read_message(source, ProjectRequest)
            offered = {record.path for record in offer.files}
            wanted = [path for path in request.wanted if path in offered]
            write_contents(sink, self._project, iter(wanted))
            sink.close()
            result = read_message(source, ProjectResult)
            return SentProject(request.directory, len(wanted), result.conflicts)

        sent = self._exchange_records("push", exchange)
        write_atomic(self._records_file, encode_value(offer.files))
        return sent

    def fetch_changes(self, *, only: tuple[str, ...] = ()) -> FetchedFiles:
        """Copy files that were made or changed there since the last time they were equal.

        ``only`` are the paths to copy, empty for all.
        A file that was changed here, too, is not replaced: the other gets a suffix.
        """
        known = {record.path: record for record in self._read_records()}

        def exchange(source: BinaryIO, sink: BinaryIO) -> FetchedFiles:
            write_message(sink, ProjectOffer(self._key, self._project.name, only=only))
            changes = read_message(source, ChangeList)
            targets = {}
            conflicts = []
            for record in changes.files:
                here = describe_path(self._project, record.path)
                is_ours = here is not None and here not in (record, known.get(record.path))
                targets[record.path] = record.path + (CONFLICT_SUFFIX if is_ours else "")
                if is_ours:
                    conflicts.append(record.path)
            written = [item.path for item in read_contents(source, self._project, targets)]
            return FetchedFiles(tuple(written), tuple(conflicts))

        return self._exchange_records("fetch", exchange)

    def _read_records(self) -> tuple[FileRecord, ...]:
        try:
            data = self._records_file.read_bytes()
            return decode_value(data, tuple[FileRecord, ...])
        except (FileNotFoundError, ValueError):
            return ()

    def _exchange_records(self, action: str, exchange: Callable[[BinaryIO, BinaryIO], T]) -> T:
        """Run the other side and ``exchange`` messages with it; copy danlu there if needed."""
        try:
            return self._run_exchange(action, exchange)
        except _MissingProgram:
            copy_program(self._host, self._cache)
        return self._run_exchange(action, exchange)

    def _run_exchange(self, action: str, exchange: Callable[[BinaryIO, BinaryIO], T]) -> T:
        with self._open_receiver(action) as (source, sink):
            return exchange(source, sink)

    @contextmanager
    def _open_receiver(self, action: str) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """Yield what the other side writes and reads; raise its error if it fails."""
        script = program_script(_MODULE, action)
        process = subprocess.Popen(
            self._host.command(script),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        failure: BaseException | None = None
        try:
            with limit_transfer(process) as pipes:
                yield pipes
        except BaseException as error:
            is_reported = isinstance(error, EOFError | BrokenPipeError | OutsideError)
            if not is_reported or isinstance(error, TemporaryError):
                kill_program(process)
                raise
            raise_interrupt(error)
            failure = error
        _, stderr = finish_program(process)
        if process.returncode or failure is not None:
            raise self._interpret_failure(process.returncode, stderr, failure)

    def _interpret_failure(
        self, code: int, stderr: bytes, failure: BaseException | None
    ) -> Exception:
        if code == MISSING_PROGRAM:
            return _MissingProgram()
        if code == SSH_FAILED:
            return self._host.unreachable_error(stderr)
        if code == 0 and isinstance(failure, DanluError):
            return failure
        lines = stderr.decode(errors="replace").strip().splitlines()
        reason = escape_unprintable(lines[-1]) if lines else str(failure or f"exit code {code}")
        return OutsideError(f"cannot copy the project from or to {self._host.name}: {reason}")


def open_project_link(host: RemoteHost, project: Path, paths: Paths) -> ProjectLink | None:
    """Return the connection of a project with its copy on ``host``; None if both share it."""
    return None if host.shares(project) else ProjectLink(host, project, paths)


class _MissingProgram(Exception):
    """danlu is not on the other machine yet."""
