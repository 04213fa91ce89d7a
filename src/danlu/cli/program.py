"""The program: runs a command, renders what went wrong, gives the exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import click

from danlu.cli.session import Session
from danlu.cli.terminal import OutputClosed
from danlu.errors import DanluError, OutsideError, UsageError

__all__ = ["run"]

_INTERRUPTED = 130
_TERMINATED = 143
_FAILED = 3
#: What a shell reports of a program that wrote into a closed pipe: 128 + SIGPIPE.
_OUTPUT_CLOSED = 141


def run(arguments: list[str]) -> int:
    """Run the command that ``arguments`` name, and give the program's exit code."""
    if "_DANLU_COMPLETE" in os.environ:
        return _complete()
    _fill_standard_descriptors()
    this = Session(arguments)
    _listen_for_termination()
    try:
        return _invoke(this, arguments)
    except BaseException as error:
        return _failed(this, error)
    finally:
        this.close()


class _Terminated(KeyboardInterrupt):
    """SIGTERM: ends a run as Ctrl-C does, with children killed and the terminal restored."""


def _terminate(number: int, frame: object) -> None:
    raise _Terminated


def _listen_for_termination() -> None:
    import signal
    import threading

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)


def _fill_standard_descriptors() -> None:
    """Open /dev/null where a standard stream is closed, or the next file would become our stdout.

    Python has None for such a stream, which much code does not expect.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def _invoke(this: Session, arguments: list[str]) -> int:
    from danlu.cli.app import root

    try:
        with root.make_context("danlu", arguments, obj=this) as context:
            result = root.invoke(context)
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    return result if isinstance(result, int) else 0


def _complete() -> int:
    from click.shell_completion import shell_complete

    from danlu.cli.app import root

    instruction = os.environ["_DANLU_COMPLETE"]
    try:
        return shell_complete(root, {"obj": Session([])}, "danlu", "_DANLU_COMPLETE", instruction)
    except (Exception, KeyboardInterrupt):
        return 1  # a shell that asks while its user types is told nothing


def _failed(run: Session, error: BaseException) -> int:
    """Say what went wrong, and give the exit code for it."""
    run.stop_progress()
    causes = list(_leaves(error))
    if any(isinstance(one, KeyboardInterrupt | click.Abort) for one in causes):
        terminated = any(isinstance(one, _Terminated) for one in causes)
        run.terminal.insist("terminated" if terminated else "interrupted")
        return _TERMINATED if terminated else _INTERRUPTED
    if all(isinstance(one, OutputClosed) for one in causes):
        return _OUTPUT_CLOSED
    if all(isinstance(one, SystemExit) for one in causes):
        raise error
    known = [_as_ours(one, run) for one in causes]
    for one in known:
        _show(run, one)
    code = known[0].exit_code
    return code if run.failure_code is None else run.failure_code


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions of nested groups, without those that only say that others were cancelled."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _as_ours(error: BaseException, run: Session) -> DanluError:
    if isinstance(error, DanluError):
        _write_traceback(run, error)
        return error
    if isinstance(error, click.ClickException):
        return _usage(error)
    if isinstance(error, OSError) and error.filename is not None:
        _write_traceback(run, error)
        return OutsideError(f"{os.fsdecode(error.filename)}: {error.strerror}")
    return _unexpected(run, error)


def _usage(error: click.ClickException) -> UsageError:
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "danlu"
    if isinstance(error, click.FileError):
        return UsageError(message)
    return UsageError(message, hint=f"see `{path} --help`")


def _unexpected(run: Session, error: BaseException) -> OutsideError:
    """A defect of danlu's: one line, and where the rest is."""
    _write_traceback(run, error)
    first = (str(error).splitlines() or [""])[0]
    message = f"danlu failed in a way it should not: {type(error).__name__}: {first}".rstrip(": ")
    if run.log.written:
        hint = f"this is a defect; please report it with the traceback in {run.log.path}"
    else:
        hint = "this is a defect; please report it with the output of `danlu --verbose …`"
    return OutsideError(message, hint=hint)


def _write_traceback(run: Session, error: BaseException) -> None:
    import traceback

    text = "".join(traceback.format_exception(error)).rstrip()
    run.log.write(text)
    if run.verbosity and not isinstance(error, DanluError):
        run.terminal.insist(text)


def _show(run: Session, error: DanluError) -> None:
    from danlu.cli import messages

    if run.progress == "json":
        import json

        run.terminal.insist(json.dumps(messages.as_fields(error)))
    else:
        messages.render(error, run.terminal, directory=run.project_directory)
    if run.verbosity and run.log.written:
        run.terminal.insist(f"log: {run.log.path}")
