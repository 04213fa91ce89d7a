"""Run a command, report its failure, and return the exit code."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import shell_complete

from danlu.cli.app import root
from danlu.cli.session import Session
from danlu.cli.terminal import OutputClosed
from danlu.errors import DanluError, OutsideError, StepFailed, UsageError
from danlu.util.exception_groups import iter_leaf_errors
from danlu.util.fd_limit import fd_shortage_error, is_fd_shortage
from danlu.util.files import is_disk_failure

# What only failures and completion need is imported in functions: every command loads this module.

_FREE_SPACE_HINT = "free some space with `danlu jobs rm --all` and `danlu image prune`"
_DISK_HINTS = {
    errno.ENOSPC: _FREE_SPACE_HINT,
    errno.EDQUOT: _FREE_SPACE_HINT,
    errno.EROFS: "mount the file system writable, or move danlu's data with DANLU_HOME",
    errno.EIO: "the disk or the file system may be failing: check the kernel log (dmesg)",
}
#: How programs and libraries say that they could not reach a server.
_NO_CONNECTION = re.compile(r"(?i)\b(reach|fetch|connect|timed out|Connection refused)\b")
_EXIT_INTERRUPTED = 130
_EXIT_TERMINATED = 143
#: 128 + SIGPIPE, as shells report a program that wrote into a closed pipe.
_EXIT_OUTPUT_CLOSED = 141


def run(arguments: list[str]) -> int:
    """Run the command given by ``arguments`` and return the program's exit code."""
    if "_DANLU_COMPLETE" in os.environ:
        return _complete_shell()
    _fill_standard_descriptors()
    session = Session(arguments)
    _handle_sigterm()
    before = _interrupt_handler()
    try:
        try:
            return _invoke_command(session, arguments)
        except BaseException as error:
            # The command has cleaned up: another Ctrl-C now ends the process at once.
            _set_interrupt_handler(signal.SIG_DFL)
            return _report_failure(session, error)
        finally:
            session.close()
    except KeyboardInterrupt:  # pressed again before the handler was reset
        return _EXIT_INTERRUPTED
    finally:
        _set_interrupt_handler(before)


def report_error(
    arguments: Sequence[str], error: Exception, failure_code: int | None = None
) -> int:
    """Print the error of a command that ran without this module, and return the exit code.

    That is ``failure_code`` if given, else the error's. Raises errors that are no
    :class:`DanluError`.
    """
    if not isinstance(error, DanluError):
        raise error
    session = Session(list(arguments))
    session.failure_code = failure_code
    try:
        return _report_failure(session, error)
    finally:
        session.close()


def let_interrupts_end() -> None:
    """Let Ctrl-C end the process: everything is cleaned up, and it may wait for threads."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


# -- signals and descriptors


class _TerminationSignal(KeyboardInterrupt):
    """SIGTERM: unwinds as Ctrl-C does, which kills children and restores the terminal."""


def _interrupt_handler() -> Any:
    return signal.getsignal(signal.SIGINT)


def _set_interrupt_handler(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(signal.SIGINT, handler)


def _raise_terminated(number: int, frame: object) -> None:
    raise _TerminationSignal


def _handle_sigterm() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _raise_terminated)


def _fill_standard_descriptors() -> None:
    """Open /dev/null for closed standard streams.

    Otherwise the next file that is opened would become our stdout. Python sets such a stream to
    None, which much code does not expect.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


# -- commands


def _invoke_command(session: Session, arguments: list[str]) -> int:
    if _may_run_elsewhere(session, arguments):
        from danlu.cli.context_dispatch import run_in_context

        code = run_in_context(session, arguments, root)
        if code is not None:
            return code
    try:
        with root.make_context("danlu", arguments, obj=session) as context:
            result = root.invoke(context)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    return result if isinstance(result, int) else 0


def _may_run_elsewhere(session: Session, arguments: Sequence[str]) -> bool:
    """Return whether the module for contexts is needed, which takes time to import."""
    if sys.platform != "linux" or session.has_contexts:
        return True
    return any(word == "--on" or word.startswith("--on=") for word in arguments)


def _complete_shell() -> int:
    instruction = os.environ["_DANLU_COMPLETE"]
    try:
        return shell_complete(root, {"obj": Session([])}, "danlu", "_DANLU_COMPLETE", instruction)
    except (Exception, KeyboardInterrupt):
        return 1  # a traceback would end up in the command line that the user is typing


# -- failures


def _report_failure(session: Session, error: BaseException) -> int:
    """Print what went wrong and return the exit code."""
    session.stop_progress()
    causes = list(iter_leaf_errors(error))
    if any(isinstance(cause, KeyboardInterrupt | click.Abort) for cause in causes):
        terminated = any(isinstance(cause, _TerminationSignal) for cause in causes)
        session.terminal.write_stderr("terminated" if terminated else "interrupted")
        return _EXIT_TERMINATED if terminated else _EXIT_INTERRUPTED
    if all(isinstance(cause, OutputClosed) for cause in causes):
        return _EXIT_OUTPUT_CLOSED
    if all(isinstance(cause, SystemExit) for cause in causes):
        raise error
    failures = [_to_danlu_error(cause, session) for cause in causes]
    for failure in failures:
        _blame_dead_proxy(failure)
        _print_failure(session, failure)
    return failures[0].exit_code if session.failure_code is None else session.failure_code


def _blame_dead_proxy(failure: DanluError) -> None:
    """Name the proxy in the hint if something could not be fetched because of it.

    Here and not where it was fetched: uv, git, conda's library and aiohttp say at most its address.
    """
    texts = (failure.message, *failure.details)
    if isinstance(failure, OutsideError) and any(map(_NO_CONNECTION.search, texts)):
        from danlu.util.proxies import explain_dead_proxy

        failure.hint = "\n".join(filter(None, (explain_dead_proxy(os.environ), failure.hint)))


def _to_danlu_error(error: BaseException, session: Session) -> DanluError:
    if isinstance(error, click.ClickException):
        return _to_usage_error(error)
    _write_traceback(session, error)
    if isinstance(error, DanluError):
        return error
    if isinstance(error, OSError) and is_disk_failure(error):
        file = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        return OutsideError(f"{file}{error.strerror}", hint=_DISK_HINTS[error.errno or 0])
    if is_fd_shortage(error):
        return fd_shortage_error()
    if isinstance(error, OSError) and error.filename is not None:
        return OutsideError(f"{os.fsdecode(error.filename)}: {error.strerror}")
    return _to_defect_error(session, error)


def _to_usage_error(error: click.ClickException) -> UsageError:
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    if isinstance(error, click.FileError):
        return UsageError(message)
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "danlu"
    return UsageError(message, hint=f"see `{path} --help`")


def _to_defect_error(session: Session, error: BaseException) -> OutsideError:
    """Summarize a bug of danlu in one line; its traceback is in the log."""
    first = (str(error).splitlines() or [""])[0]
    message = f"internal error: {type(error).__name__}: {first}".rstrip(": ")
    if session.log.exists:
        hint = f"this is a bug in danlu; please report it with the traceback in {session.log.path}"
    else:
        hint = "this is a bug in danlu; please report it with the output of `danlu --verbose …`"
    return OutsideError(message, hint=hint)


def _write_traceback(session: Session, error: BaseException) -> None:
    import traceback

    text = "".join(traceback.format_exception(error)).rstrip()
    session.log.write(text)
    if session.verbosity and not isinstance(error, DanluError):
        session.terminal.write_stderr(text)


def _print_failure(session: Session, error: DanluError) -> None:
    from danlu.cli import error_rendering

    if session.progress == "json":
        error_rendering.print_error_event(error, session.terminal)
    else:
        if isinstance(error, StepFailed) and session.is_on_screen(error.details):
            error.details = ()
        error_rendering.print_error(error, session.terminal, directory=session.project_directory)
    if session.verbosity and session.log.exists:
        session.terminal.write_stderr(f"log: {session.log.path}")
