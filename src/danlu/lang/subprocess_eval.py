"""Evaluate Starlark in a child process, with limits on its time and memory.

The interpreter has no memory limit and prints to stderr when it crashes, so it never runs in this
process. A forked child costs about two milliseconds. A process with threads cannot be forked safely
and starts a new interpreter instead (about 0.1 s). The child opens no file: it asks its parent for
every text.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from danlu.lang.protocol import (
    EvaluationFailure,
    EvaluationLimits,
    EvaluationResult,
    SourceProvider,
    decode_result,
    encode_result,
)
from danlu.util.fork import DeferredInterrupt
from danlu.util.spawn import spawn_process

_GRACE_SECONDS = 2.0
_MAX_MESSAGE = 64 << 20


class _EvalProcess(msgspec.Struct, frozen=True):
    pid: int
    read: int
    write: int


def evaluate_in_child(
    file: str,
    function: str,
    channel: SourceProvider,
    limits: EvaluationLimits,
    *,
    arguments: Mapping[str, object] = MappingProxyType({}),
    fork: bool | None = None,
    while_waiting: Callable[[], object] | None = None,
) -> EvaluationResult:
    """Evaluate a file in a child process and answer its requests from ``channel``.

    ``fork`` chooses how the child is started; by default it is forked if this process has one
    thread. What ``channel`` raises is raised here, after the child was killed. ``while_waiting`` is
    called once while the child works: it already has the text of ``file``, so a file that loads no
    other is evaluated meanwhile.
    """
    if fork is None:
        fork = has_one_thread()
    request = {
        "file": file,
        "function": function,
        "arguments": dict(arguments),
        "seconds": limits.seconds,
        "memory": limits.memory,
        "text": channel.read(file),
    }
    with _fork_child() if fork else _spawn_child() as child:
        _send_message(child.write, request)
        if while_waiting is not None:
            while_waiting()
        return _serve_child(child, channel, limits)


def has_one_thread() -> bool:
    """Return whether this process has one thread, so that it can be forked."""
    # A fork copies the locks of other threads, but not the threads that would release them.
    if threading.active_count() != 1:
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return True


def _serve_child(
    child: _EvalProcess, channel: SourceProvider, limits: EvaluationLimits
) -> EvaluationResult:
    deadline = time.monotonic() + limits.seconds + _GRACE_SECONDS
    while True:
        message = _receive_message(child.read, deadline)
        if message == "late":
            return EvaluationResult((), EvaluationFailure("time", "timeout"))
        if message is None or isinstance(message, str):
            return EvaluationResult((), EvaluationFailure("died", "the interpreter ended"))
        if message["op"] == "done":
            return decode_result(message["outcome"])
        asked = time.monotonic()
        _answer_request(child, channel, message)
        # The time of a download or a clone is not the file's.
        deadline += time.monotonic() - asked


def _answer_request(
    child: _EvalProcess, channel: SourceProvider, message: Mapping[str, Any]
) -> None:
    if message["op"] == "read":
        _send_message(child.write, channel.read(message["path"]))
    else:
        commit, files = channel.include(message["url"], message["ref"])
        _send_message(child.write, [commit, dict(files)])


# -- starting a child ------------------------------------------------------------------------------


@contextlib.contextmanager
def _fork_child() -> Iterator[_EvalProcess]:
    with _open_pipes() as (child_read, parent_write, parent_read, child_write):
        sys.stdout.flush()
        sys.stderr.flush()
        interrupts = DeferredInterrupt()
        pid = os.fork()
        if pid == 0:
            _run_forked_child(child_read, child_write, interrupts)
        os.close(child_read)
        os.close(child_write)
        with _kill_on_exit(pid):
            interrupts.release()
            yield _EvalProcess(pid, parent_read, parent_write)


@contextlib.contextmanager
def _spawn_child() -> Iterator[_EvalProcess]:
    with _open_pipes() as (child_read, parent_write, parent_read, child_write):
        path = os.pathsep.join(part or os.getcwd() for part in sys.path)
        command = (sys.executable, "-m", "danlu.lang.subprocess_eval")
        with open(os.devnull, "wb") as quiet:
            pid = spawn_process(
                command,
                (child_read, child_write, quiet.fileno()),
                environment={"PYTHONPATH": path},
            )
        os.close(child_read)
        os.close(child_write)
        with _kill_on_exit(pid):
            yield _EvalProcess(pid, parent_read, parent_write)


@contextlib.contextmanager
def _open_pipes() -> Iterator[tuple[int, int, int, int]]:
    """Open a pipe to the child and one from it: (child reads, we write, we read, child writes)."""
    child_read, parent_write = os.pipe()
    parent_read, child_write = os.pipe()
    try:
        yield child_read, parent_write, parent_read, child_write
    finally:
        os.close(parent_read)
        os.close(parent_write)


@contextlib.contextmanager
def _kill_on_exit(pid: int) -> Iterator[None]:
    """Kill and reap the child on exit."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(pid, 0)


def _run_forked_child(read: int, write: int, interrupts: DeferredInterrupt) -> None:
    code = 1
    try:
        interrupts.release()
        _close_other_files(read, write)
        os.environ.clear()
        _serve_parent(read, write)
        code = 0
    finally:
        # No exception, exit handler or buffer of the parent may be handled twice.
        os._exit(code)


def _close_other_files(*keep: int) -> None:
    """Close the files, sockets and locks of the parent, which the child must not keep open."""
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
    _serve_parent(0, 1)


# -- in the child ---------------------------------------------------------------------------------


class _RemoteProvider:
    """The source provider in the child: ``texts`` came with the request, the rest is requested."""

    def __init__(self, read: int, write: int, texts: Mapping[str, str | None]) -> None:
        self._read = read
        self._write = write
        self._texts = texts

    def read(self, path: str) -> str | None:
        if path in self._texts:
            return self._texts[path]
        answer = self._ask_parent({"op": "read", "path": path})
        return answer if answer is None else str(answer)

    def include(self, url: str, ref: str) -> tuple[str, Mapping[str, str]]:
        commit, files = self._ask_parent({"op": "include", "url": url, "ref": ref})
        return commit, files

    def _ask_parent(self, question: Mapping[str, str]) -> Any:
        _send_message(self._write, question)
        return _receive_message(self._read, None)


def _serve_parent(read: int, write: int) -> None:
    for ignored in (signal.SIGINT, signal.SIGALRM):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # A panic of the interpreter prints a long backtrace.
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    os.close(quiet)
    # Only the child loads the interpreter.
    from danlu.lang.starlark import evaluate_starlark

    request = _receive_message(read, None)
    limits = EvaluationLimits(request["seconds"], request["memory"])
    _apply_limits(limits)
    channel = _RemoteProvider(read, write, {request["file"]: request["text"]})
    outcome = evaluate_starlark(
        request["file"],
        request["function"],
        channel,
        limits,
        arguments=request["arguments"],
    )
    _send_message(write, {"op": "done", "outcome": encode_result(outcome)})


def _apply_limits(limits: EvaluationLimits) -> None:
    seconds = int(limits.seconds + _GRACE_SECONDS) + 2
    wanted = [
        # In case nobody is left to kill it at the deadline.
        (resource.RLIMIT_CPU, seconds),
        # It writes no files, not even a core dump.
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


def _send_message(to: int, message: object) -> None:
    data = json.dumps(message).encode()
    view = memoryview(struct.pack("!I", len(data)) + data)
    # If the child died, reading its answer will fail.
    with contextlib.suppress(BrokenPipeError):
        while view:
            view = view[os.write(to, view) :]


def _receive_message(source: int, deadline: float | None) -> Any:
    """Return the next message; None if the other side is gone, ``late`` after the deadline."""
    head = _read_exactly(source, 4, deadline)
    if not isinstance(head, bytes):
        return head
    (size,) = struct.unpack("!I", head)
    # The child executes a file of somebody else: its messages are untrusted.
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
