"""Run a function in a forked child process and return its result.

A process cannot leave the namespaces that it enters (:func:`danlu.sandbox.userns.run_inside`). A
`build.py` is a user's program, which may exit, change the process or print whatever it likes. Both
therefore run in a child.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TypeVar, cast

from danlu.errors import DanluError, OutsideError
from danlu.util.outcomes import pickle_outcome, unpickle_outcome

T = TypeVar("T")

_INTERRUPTED_CODE = 130

#: Before each further signal an interrupted child has half a second to exit: 50 polls of 10 ms.
_POLL_SECONDS, _POLLS_PER_SIGNAL = 0.01, 50

_HEADER = struct.Struct("!Q")
_CHUNK_SIZE = 1 << 16

#: An unfinished line (a prompt, a progress bar) is forwarded after this long without more output.
_PARTIAL_LINE_MILLISECONDS = 100


def _preparation_error(code: int) -> DanluError:
    return OutsideError(f"the process that prepares the environment exited with code {code}")


def run_in_child(
    work: Callable[[], T],
    *,
    died: Callable[[int], DanluError] = _preparation_error,
    on_output: Callable[[bytes], None] | None = None,
) -> T:
    """Return the result of ``work``, called in a fork of this process (which has no threads).

    A :class:`DanluError` or :class:`KeyboardInterrupt` raised by ``work`` is raised here too;
    ``died`` makes the error for a child that exited without a result, from its exit code. The
    result is pickled. ``on_output`` receives what the child prints; without it, the child shares
    our stdout and stderr.
    """
    # What is still buffered would be written by both processes.
    sys.stdout.flush()
    sys.stderr.flush()
    interrupts = DeferredInterrupt()
    result, result_writer = os.pipe()
    output, output_writer = os.pipe() if on_output is not None else (-1, -1)
    child = os.fork()
    if child == 0:
        os.close(result)
        if on_output is not None:
            os.close(output)
            _redirect_output(output_writer)
        _run_and_exit(work, result_writer, interrupts)
    os.close(result_writer)
    if on_output is not None:
        os.close(output_writer)
    reader = _ResultReader(result, output, on_output)
    try:
        interrupts.release()
        payload = reader.read_result()
    except BaseException:
        _terminate_child(child)
        raise
    finally:
        os.close(result)
        if on_output is not None:
            os.close(output)
    _, status = os.waitpid(child, 0)
    return cast("T", _unpickle_result(payload, os.waitstatus_to_exitcode(status), died))


def _redirect_output(output_writer: int) -> None:
    os.dup2(output_writer, 1)
    os.dup2(output_writer, 2)
    os.close(output_writer)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)


class _ResultReader:
    """Read a child's result while forwarding what it prints.

    A program that the child left running may keep both pipes open, so end of file cannot be the end
    mark: the result is preceded by its length, and output printed after it is not waited for.
    """

    def __init__(self, result: int, output: int, on_output: Callable[[bytes], None] | None) -> None:
        self._descriptor = result
        self._output = output
        self._on_output = on_output
        self._result = bytearray()
        self._pending_output = b""
        self._poll = select.poll()
        self._poll.register(result, select.POLLIN)
        if on_output is not None:
            self._poll.register(output, select.POLLIN)

    def read_result(self) -> bytes:
        """Return the pickled result, or ``b""`` if the child exited without one."""
        while not self._is_complete():
            for descriptor, _ in self._poll.poll(
                _PARTIAL_LINE_MILLISECONDS if self._pending_output else None
            ):
                if descriptor == self._output:
                    self._receive_output()
                elif not self._receive_result():
                    self._drain_output()
                    return b""
            if self._pending_output and not self._poll.poll(_PARTIAL_LINE_MILLISECONDS):
                self._forward_output(self._pending_output)
        self._drain_output()
        return bytes(self._result[_HEADER.size :])

    def _is_complete(self) -> bool:
        if len(self._result) < _HEADER.size:
            return False
        (size,) = _HEADER.unpack_from(self._result)
        return len(self._result) >= _HEADER.size + int(size)

    def _receive_result(self) -> bool:
        part = os.read(self._descriptor, _CHUNK_SIZE)
        self._result += part
        return bool(part)

    def _receive_output(self) -> None:
        part = os.read(self._output, _CHUNK_SIZE)
        if not part:
            self._poll.unregister(self._output)
        text = self._pending_output + part
        whole = text.rfind(b"\n") + 1
        self._pending_output = text[whole:]
        if whole:
            self._forward_output(text[:whole], rest=self._pending_output)

    def _forward_output(self, text: bytes, rest: bytes = b"") -> None:
        self._pending_output = rest
        if self._on_output is not None and text:
            self._on_output(text)

    def _drain_output(self) -> None:
        """Forward what was printed before the result arrived."""
        if self._on_output is None:
            return
        ready = select.poll()
        ready.register(self._output, select.POLLIN)
        while any(event & select.POLLIN for _, event in ready.poll(0)):
            part = os.read(self._output, _CHUNK_SIZE)
            if not part:
                break
            self._pending_output += part
        self._forward_output(self._pending_output)


class DeferredInterrupt:
    """Hold Ctrl-C back during fork(), whose callbacks would swallow :class:`KeyboardInterrupt`.

    Only in the main thread, because no other thread receives :class:`KeyboardInterrupt`.
    """

    def __init__(self) -> None:
        self._interrupted = False
        main = threading.current_thread() is threading.main_thread()
        self._previous_handler = (
            signal.signal(signal.SIGINT, self._record_interrupt) if main else None
        )

    def _record_interrupt(self, number: int, frame: object) -> None:
        self._interrupted = True

    def release(self) -> None:
        """Restore the handler, and raise the signal again if it arrived meanwhile."""
        if self._previous_handler is not None:
            signal.signal(signal.SIGINT, self._previous_handler)
        if self._interrupted:
            signal.raise_signal(signal.SIGINT)


def _terminate_child(child: int) -> None:
    """Wait for the child after an interrupt, so that both processes never write at the same time.

    Ctrl-C on a terminal reached the child too, so it gets a moment to exit by itself; a signal sent
    to us alone did not, so SIGTERM and SIGKILL follow.
    """
    for number in (0, signal.SIGTERM, signal.SIGKILL):
        os.kill(child, number)
        for _ in range(_POLLS_PER_SIGNAL):
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            time.sleep(_POLL_SECONDS)
    os.waitpid(child, 0)


def _run_and_exit(work: Callable[[], object], result: int, interrupts: DeferredInterrupt) -> None:
    """Run ``work`` in the child, send its result, and exit without running clean-up handlers."""
    code = 1
    try:
        interrupts.release()
        payload = pickle_outcome(work)
        code = 0
    except KeyboardInterrupt:
        code = _INTERRUPTED_CODE
    except BaseException:
        traceback.print_exc()
    else:
        with os.fdopen(result, "wb") as file:
            sys.stdout.flush()
            sys.stderr.flush()
            file.write(_HEADER.pack(len(payload)) + payload)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _unpickle_result(payload: bytes, code: int, died: Callable[[int], DanluError]) -> object:
    if code == _INTERRUPTED_CODE and not payload:
        raise KeyboardInterrupt
    if not payload:
        raise died(code)
    return unpickle_outcome(payload)
