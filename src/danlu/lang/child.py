"""Evaluate Starlark in a child process, with limits on its time and memory.

The interpreter has no limit on memory and says its last words on stderr, so no file is evaluated
in this process. A child costs about two milliseconds where it can be forked; a process with
threads cannot be forked safely and starts a new interpreter instead (about 0.1 s). The child
opens no file: it asks us for every text.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from danlu.lang.limits import Limits
from danlu.lang.outcome import Channel, Failure, Outcome, decode, encode

__all__ = ["evaluate_in_child", "main"]

_GRACE = 2.0
_MAX_MESSAGE = 64 << 20


class _Child(msgspec.Struct, frozen=True):
    pid: int
    read: int
    write: int


def evaluate_in_child(
    file: str,
    function: str,
    channel: Channel,
    limits: Limits,
    *,
    value: bool = False,
    fork: bool | None = None,
    meanwhile: Iterable[object] = (),
) -> Outcome:
    """Evaluate a file in a child and answer its questions from ``channel``.

    ``fork`` chooses how the child is made; by default it is forked when this process has one
    thread. What ``channel`` raises is raised here, and the child is gone. Of ``meanwhile`` a step
    is taken whenever there is nothing to answer.
    """
    if fork is None:
        fork = _single_threaded()
    request = {
        "file": file,
        "function": function,
        "value": value,
        "seconds": limits.seconds,
        "memory": limits.memory,
    }
    with _forked() if fork else _spawned() as child:
        _send(child.write, request)
        return _converse(child, channel, limits, iter(meanwhile))


def _single_threaded() -> bool:
    if threading.active_count() != 1:
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return True


def _converse(
    child: _Child, channel: Channel, limits: Limits, meanwhile: Iterator[object]
) -> Outcome:
    deadline = time.monotonic() + limits.seconds + _GRACE
    while True:
        _work_until_asked(child, meanwhile)
        message = _receive(child.read, deadline)
        if message == "late":
            return Outcome((), Failure("time", "no end"))
        if message is None or isinstance(message, str):
            return Outcome((), Failure("died", "the interpreter ended"))
        if message["op"] == "done":
            return decode(message["outcome"])
        asked = time.monotonic()
        _answer(child, channel, message)
        deadline += time.monotonic() - asked


def _work_until_asked(child: _Child, meanwhile: Iterator[object]) -> None:
    """Take steps of ``meanwhile`` until the child has something to say or none is left."""
    poll = select.poll()
    poll.register(child.read, select.POLLIN)
    while not poll.poll(0):
        try:
            next(meanwhile)
        except StopIteration:
            return


def _answer(child: _Child, channel: Channel, message: Mapping[str, Any]) -> None:
    if message["op"] == "read":
        _send(child.write, channel.read(message["path"]))
    else:
        commit, files = channel.include(message["url"], message["ref"])
        _send(child.write, [commit, dict(files)])


# -- making a child -------------------------------------------------------------------------------


@contextlib.contextmanager
def _forked() -> Iterator[_Child]:
    with _pipes() as (theirs_read, ours_write, ours_read, theirs_write):
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _child_of_fork(theirs_read, theirs_write)
        os.close(theirs_read)
        os.close(theirs_write)
        with _ended(pid):
            yield _Child(pid, ours_read, ours_write)


@contextlib.contextmanager
def _spawned() -> Iterator[_Child]:
    with _pipes() as (theirs_read, ours_write, ours_read, theirs_write):
        quiet = os.open(os.devnull, os.O_WRONLY)
        actions = [
            (os.POSIX_SPAWN_DUP2, theirs_read, 0),
            (os.POSIX_SPAWN_DUP2, theirs_write, 1),
            (os.POSIX_SPAWN_DUP2, quiet, 2),
        ]
        path = os.pathsep.join(part or os.getcwd() for part in sys.path)
        arguments = [sys.executable, "-m", "danlu.lang.child"]
        pid = os.posix_spawn(sys.executable, arguments, {"PYTHONPATH": path}, file_actions=actions)
        os.close(quiet)
        os.close(theirs_read)
        os.close(theirs_write)
        with _ended(pid):
            yield _Child(pid, ours_read, ours_write)


@contextlib.contextmanager
def _pipes() -> Iterator[tuple[int, int, int, int]]:
    """Make two pipes: their reading end, ours to write; ours to read, theirs to write."""
    theirs_read, ours_write = os.pipe()
    ours_read, theirs_write = os.pipe()
    try:
        yield theirs_read, ours_write, ours_read, theirs_write
    finally:
        os.close(ours_read)
        os.close(ours_write)


@contextlib.contextmanager
def _ended(pid: int) -> Iterator[None]:
    """Leave no child behind, however it went."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(pid, 0)


def _child_of_fork(read: int, write: int) -> None:
    code = 1
    try:
        _close_all_but(read, write)
        os.environ.clear()
        _serve(read, write)
        code = 0
    finally:
        # No exception, exit handler or buffer of the parent's may go on in here.
        os._exit(code)


def _close_all_but(*keep: int) -> None:
    """Close the parent's files, sockets and locks, so that they end when the parent says so."""
    try:
        opened = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        opened = list(range(1024))
    for number in opened:
        if number > 2 and number not in keep:
            with contextlib.suppress(OSError):
                os.close(number)


def main() -> None:
    """Serve one evaluation on stdin and stdout."""
    _serve(0, 1)


# -- in the child ---------------------------------------------------------------------------------


class _Remote:
    """The channel as the child has it: questions go through the pipe."""

    def __init__(self, read: int, write: int) -> None:
        self._read = read
        self._write = write

    def read(self, path: str) -> str | None:
        answer = self._ask({"op": "read", "path": path})
        return answer if answer is None else str(answer)

    def include(self, url: str, ref: str) -> tuple[str, Mapping[str, str]]:
        commit, files = self._ask({"op": "include", "url": url, "ref": ref})
        return commit, files

    def _ask(self, question: Mapping[str, str]) -> Any:
        _send(self._write, question)
        return _receive(self._read, None)


def _serve(read: int, write: int) -> None:
    for ignored in (signal.SIGINT, signal.SIGALRM):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A panic of the interpreter's prints a page of its own insides.
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    os.close(quiet)
    from danlu.lang.starlark import run

    request = _receive(read, None)
    limits = Limits(request["seconds"], request["memory"])
    _limit(limits)
    channel = _Remote(read, write)
    outcome = run(request["file"], request["function"], channel, limits, value=request["value"])
    _send(write, {"op": "done", "outcome": encode(outcome)})


def _limit(limits: Limits) -> None:
    import resource

    seconds = int(limits.seconds + _GRACE) + 2
    wanted = [
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ]
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as statm:
        held = int(statm.read().split()[0]) * resource.getpagesize()
        wanted.append((resource.RLIMIT_AS, held + 4 * limits.memory))
    for kind, value in wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (value, value))


# -- messages: four bytes of length, then JSON ----------------------------------------------------


def _send(to: int, message: object) -> None:
    data = json.dumps(message).encode()
    view = memoryview(struct.pack("!I", len(data)) + data)
    # A child that died is noticed when its answer is read.
    with contextlib.suppress(BrokenPipeError):
        while view:
            view = view[os.write(to, view) :]


def _receive(source: int, deadline: float | None) -> Any:
    """Return the next message; None when the other side is gone, ``late`` past the deadline."""
    head = _read_exactly(source, 4, deadline)
    if not isinstance(head, bytes):
        return head
    (size,) = struct.unpack("!I", head)
    if size > _MAX_MESSAGE:
        return None
    data = _read_exactly(source, size, deadline)
    return json.loads(data) if isinstance(data, bytes) else data


def _read_exactly(source: int, size: int, deadline: float | None) -> bytes | str | None:
    parts = []
    poll = select.poll()
    poll.register(source, select.POLLIN)
    while size:
        if deadline is not None:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                return "late"
        part = os.read(source, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


if __name__ == "__main__":
    main()
