"""Tell whether a program and its children still do anything, and give up on one that does not."""

from __future__ import annotations

import io
import math
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, TypeVar

from danlu.errors import TemporaryError
from danlu.util.process_tree import list_descendants, send_signal

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

T = TypeVar("T")

#: How long (seconds) a program that nobody watches may do nothing. Longer than the programs
#: themselves wait for a lock or a server.
STUCK_SECONDS = 900.0

_POLL_SECONDS = 1.0

#: As much moves at once before the limit begins anew.
_PIPE_CHUNK_SIZE = 1 << 16


def run_program(
    args: Sequence[str],
    *,
    input: bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stuck_seconds: float | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program with nobody in front of it and collect its output, whatever its exit code is.

    Raises :class:`TemporaryError` as :func:`finish_program` does, :class:`FileNotFoundError` if it
    does not exist, and :class:`KeyboardInterrupt` if Ctrl-C, which a terminal sends to it and to
    this process, has ended it: its end may be noticed before our own interrupt.
    """
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    process = subprocess.Popen(
        args, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=cwd
    )
    output, errors = finish_program(process, input, stuck_seconds=stuck_seconds)
    if process.returncode == -signal.SIGINT:
        raise KeyboardInterrupt
    return subprocess.CompletedProcess(args, process.returncode, output, errors)


def finish_program(
    process: subprocess.Popen[bytes],
    input: bytes | None = None,
    *,
    stuck_seconds: float | None = None,
    read_progress: Callable[[], object] | None = None,
) -> tuple[bytes, bytes]:
    """Wait for a program, and return what remains in the pipes of its output and errors.

    Raises :class:`TemporaryError` if the program and its children do nothing for ``stuck_seconds``
    (default: :data:`STUCK_SECONDS`); ``read_progress`` returns something that changes if another
    process works for it, and may raise. They are killed if this raises. Starts no thread, so that
    the caller may enter a user namespace next.
    """
    limit = STUCK_SECONDS if stuck_seconds is None else stuck_seconds
    if process.stdin is not None and process.stdin.closed:
        process.stdin = None  # communicate() would flush it
    before: object = None
    since = time.monotonic()
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                output, errors = process.communicate(input, timeout=_POLL_SECONDS)
                return output or b"", errors or b""
            now = read_progress() if read_progress else read_activity(process.pid)
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > limit:
                raise _stuck_process_error(process, limit)
    except BaseException:
        kill_program(process)
        raise
    finally:
        _close_pipes(process)


@contextmanager
def limit_transfer(
    process: subprocess.Popen[bytes], *, stuck_seconds: float | None = None
) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Yield the pipes of a program's output and input, with a limit on how long they are idle.

    Raises :class:`TemporaryError` if the block waits for ``stuck_seconds`` (default:
    :data:`STUCK_SECONDS`) until something moves through one of them, after killing the program and
    its children. What these do otherwise does not count: ssh passes its pipes on to the process
    that holds the connection. The pipes are closed at the end, in this process. A thread watches
    them, so the block must not fork.
    """
    limit = STUCK_SECONDS if stuck_seconds is None else stuck_seconds
    output, input = _WatchedPipe(process.stdout), _WatchedPipe(process.stdin)
    has_ended = threading.Event()
    is_stuck = False

    def watch_pipes() -> None:
        nonlocal is_stuck
        while not is_stuck and not has_ended.wait(min(_POLL_SECONDS, limit)):
            is_stuck = time.monotonic() - min(output.waits_since, input.waits_since) > limit
        if is_stuck:
            kill_process_tree(process.pid)

    watcher = threading.Thread(target=watch_pipes, daemon=True)
    watcher.start()
    source, sink = io.BufferedReader(output), io.BufferedWriter(input)
    try:
        yield source, sink
        sink.close()
    except BaseException as error:
        if is_stuck and isinstance(error, Exception):
            raise _stuck_process_error(process, limit) from error
        if not isinstance(error, Exception):
            kill_process_tree(process.pid)  # closing would wait for a program that does not read
        raise
    finally:
        for pipe in (sink, source):
            with suppress(OSError):
                pipe.close()
        has_ended.set()
        watcher.join()
    if is_stuck:  # what has arrived may look complete
        raise _stuck_process_error(process, limit)


class _WatchedPipe(io.RawIOBase):
    """A pipe that knows since when a call has been waiting for the other side."""

    def __init__(self, pipe: IO[bytes] | None) -> None:
        self._pipe = pipe
        #: A monotonic time; infinite while no call waits.
        self.waits_since = math.inf

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        assert self._pipe is not None
        view = memoryview(buffer)
        data = self._call_and_time(os.read, self._pipe.fileno(), len(view))
        view[: len(data)] = data
        return len(data)

    def write(self, data: ReadableBuffer) -> int:
        assert self._pipe is not None
        part = memoryview(data)[:_PIPE_CHUNK_SIZE]
        return self._call_and_time(os.write, self._pipe.fileno(), part)

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        super().close()

    def _call_and_time(self, function: Callable[..., T], *args: object) -> T:
        self.waits_since = time.monotonic()
        try:
            return function(*args)
        finally:
            self.waits_since = math.inf


def _stuck_process_error(process: subprocess.Popen[bytes], seconds: float) -> TemporaryError:
    command = process.args
    program = command if isinstance(command, (str, bytes, os.PathLike)) else command[0]
    return stuck_error(os.fsdecode(program), seconds)


def stuck_error(program: str, seconds: float) -> TemporaryError:
    """Return the error for a program that did nothing for so long."""
    return TemporaryError(
        f"{os.path.basename(program)} did nothing for {seconds / 60:.0f} minutes",
        hint="check the network and the disk, and try again",
    )


def kill_program(process: subprocess.Popen[bytes]) -> None:
    """Kill a program with its children, wait for it, and close its pipes."""
    kill_process_tree(process.pid)
    process.wait()
    _close_pipes(process)


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def kill_process_tree(process: int) -> None:
    """Kill a process and its descendants."""
    send_signal([process, *list_descendants(process)])


def read_activity(process: int) -> tuple[int, int]:
    """Return numbers that change while a process or a descendant of it does anything.

    They are the bytes read and written, pipes and most sockets included (proc(5), io), and whole
    seconds of processor time, so that waking up now and then does not count. Both may also decrease
    when a descendant ends. What cannot be read, because the process has ended, counts as 0.
    """
    transferred = ticks = 0
    for member in (process, *list_descendants(process)):
        try:
            with open(f"/proc/{member}/io", "rb") as file:
                transferred += sum(map(int, re.findall(rb"[rw]char: (\d+)", file.read())))
            with open(f"/proc/{member}/stat", "rb") as file:
                user, system = file.read().rpartition(b")")[2].split()[11:13]
        except (OSError, ValueError):
            continue
        ticks += int(user) + int(system)
    return transferred, ticks // os.sysconf("SC_CLK_TCK")
