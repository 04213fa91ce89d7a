"""Run a command where the current context says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from itertools import takewhile

from danlu.cli.session import Session
from danlu.commands.remote.contexts import find_current_context
from danlu.commands.remote.remote_command import RemoteCommand, runs_remotely
from danlu.errors import MachineError

_EXIT_NOT_STARTED = 125
#: Commands whose last arguments are a program and its arguments.
_PROGRAM_COMMANDS = ("exec", "run", "ssh")
_HELP_OPTIONS = ("-h", "--help")


def run_in_context(
    session: Session, arguments: Sequence[str], commands: Sequence[str]
) -> int | None:
    """Run a command on the machine of the current context; return its exit code.

    Returns None if it runs on this machine. ``commands`` are the names of all commands. Raises
    :class:`~danlu.errors.DanluError` if the other machine cannot be reached.
    """
    name = next((word for word in arguments if not word.startswith("-")), "")
    # `danlu context` works although the current context does not exist.
    if name not in commands or name == "context" or _asks_for_help(name, arguments):
        return None
    context_name, context = find_current_context(session.paths)
    if context is None or not context.is_remote:
        if sys.platform != "linux" and runs_remotely(name):
            raise _unsupported_error(name)
        if context is not None:
            os.environ.setdefault("DANLU_ENGINE", context.engine)
        return None
    if not runs_remotely(name):
        return None
    if name in ("exec", "run"):
        session.failure_code = _EXIT_NOT_STARTED
    command = RemoteCommand(
        name,
        (context_name, context),
        arguments,
        session.directory,
        session.settings,
        lambda note: session.terminal.info(f"note: {note}"),
    )
    command.prepare()
    return command.run(terminal=session.terminal.can_attach)


def _unsupported_error(command: str) -> MachineError:
    return MachineError(
        f"`danlu {command}` needs Linux, which is not the system of this machine",
        hint="with Docker: `danlu context create docker --engine docker-container://danlu` and "
        "`danlu context use docker`; or use another machine with --engine ssh://USER@HOST",
    )


def _asks_for_help(name: str, arguments: Sequence[str]) -> bool:
    """Return whether the help of a command is wanted, which is the same on all machines."""
    words: Iterable[str] = arguments[arguments.index(name) + 1 :]
    if name in _PROGRAM_COMMANDS:
        # From the first word that is not an option on, options are the program's.
        words = takewhile(lambda word: word.startswith("-") and word != "--", words)
    return any(word in _HELP_OPTIONS for word in words)
