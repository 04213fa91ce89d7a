"""Do a piece of work in a child process, so that what it does to a process is not done to ours.

Building and pulling make the process root of namespaces of its own, for good. A job's supervisor
that were started from there would run its programs in them.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from danlu.errors import DanluError, OutsideError

__all__ = ["apart"]

T = TypeVar("T")

_INTERRUPTED = 130

#: For how long a child may clean up by itself before it is told to: 50 times 10 ms.
_MOMENT, _MOMENTS = 0.01, 50


def apart(work: Callable[[], T]) -> T:
    """The value of ``work``, which is done in a copy of this process; no threads may run yet.

    What it raises of :class:`DanluError` is raised here, and so is :class:`KeyboardInterrupt`.
    The value is pickled on its way.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    interrupts = _Held()
    readable, writable = os.pipe()
    answer = os.fdopen(readable, "rb")
    child = os.fork()
    if child == 0:
        answer.close()
        _do(work, writable, interrupts)
    os.close(writable)
    try:
        with answer:  # before an interrupt can come: what is half opened nobody closes
            interrupts.release()
            told = answer.read()
    except BaseException:
        _end(child)
        raise
    _, status = os.waitpid(child, 0)
    return cast("T", _heard(told, os.waitstatus_to_exitcode(status)))


class _Held:
    """Ctrl-C, held back until it is released: what fork() calls back would swallow it.

    In the main thread only, as no other is interrupted.
    """

    def __init__(self) -> None:
        self._came = False
        main = threading.current_thread() is threading.main_thread()
        self._before = signal.signal(signal.SIGINT, self._note) if main else None

    def _note(self, number: int, frame: object) -> None:
        self._came = True

    def release(self) -> None:
        """Let it through again, and now if it came."""
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if self._came:
            signal.raise_signal(signal.SIGINT)


def _end(child: int) -> None:
    """Wait for a child that we were interrupted with, so that two do not write at once.

    Ctrl-C at a terminal reached it too; a signal that was meant for us alone did not.
    """
    for _ in range(_MOMENTS):
        if os.waitpid(child, os.WNOHANG)[0]:
            return
        time.sleep(_MOMENT)
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)


def _do(work: Callable[[], object], answer: int, interrupts: _Held) -> None:
    """The child: say how ``work`` ended, and end without the clean-up that is the parent's."""
    code = 1
    try:
        interrupts.release()
        told = pickle.dumps(_outcome(work))
        code = 0
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except BaseException:
        import traceback

        traceback.print_exc()
    else:
        with os.fdopen(answer, "wb") as file:
            file.write(told)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _outcome(work: Callable[[], object]) -> tuple[str, Any]:
    try:
        return "value", work()
    except DanluError as error:
        return "error", (type(error), error.args, error.__dict__)
    except BaseExceptionGroup as group:
        first, _ = group.split(DanluError)
        if first is None:
            raise
        leaf: BaseException = first
        while isinstance(leaf, BaseExceptionGroup):
            leaf = leaf.exceptions[0]
        return "error", (type(leaf), leaf.args, leaf.__dict__)


def _heard(told: bytes, code: int) -> object:
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    if not told:
        raise OutsideError(f"the process that prepares the environment ended with {code}")
    kind, value = pickle.loads(told)
    if kind == "value":
        return value
    made, arguments, fields = value
    # Not by calling it: errors have arguments that may only be given by name.
    error = made.__new__(made, *arguments)
    error.args = arguments
    error.__dict__.update(fields)
    raise error
