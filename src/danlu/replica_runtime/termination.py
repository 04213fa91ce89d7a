"""Let SIGTERM end a program like Ctrl-C does, so that its ``finally`` blocks run.

A stopped job sends SIGTERM (so does Kubernetes), which ends Python at once. The first one becomes a
``KeyboardInterrupt``; a second one ends the program.
"""

import os
import signal
import threading
from typing import Any

#: The exit code of a program that SIGTERM ended, as shells and Kubernetes report it.
EXIT_TERMINATED = 128 + signal.SIGTERM

_received = []  # type: list[int]

#: The signal mask of each thread before it forked.
_masks = threading.local()


def unwind_on_sigterm() -> None:
    """Turn the first SIGTERM into a ``KeyboardInterrupt``, unless the program handles it already.

    Processes that this one forks are not affected: ``multiprocessing`` ends its workers by SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    signal.signal(signal.SIGTERM, _handle_sigterm)
    # Python 3.6 lacks it.
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_hold_sigterm, after_in_parent=_release_sigterm, after_in_child=_forget_handler
        )


def was_terminated() -> bool:
    """Return whether SIGTERM has interrupted the program."""
    return bool(_received)


def _handle_sigterm(number: int, frame: Any) -> None:
    _received.append(number)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # The program may have its own handler of Ctrl-C: asyncio cancels its main task.
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(signal.SIGINT, frame)
    else:
        os.kill(os.getpid(), signal.SIGTERM)


def _hold_sigterm() -> None:
    # Python drops what a child receives before it has cleared the signals of its parent.
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _release_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _forget_handler() -> None:
    if signal.getsignal(signal.SIGTERM) is _handle_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release_sigterm()
