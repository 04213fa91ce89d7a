"""Enter running environments without loading the program: ``danlu up``, ``exec`` and ``ssh``.

The stamp (:mod:`danlu.cli.command_stamp`) of a repeated ``up`` or ``exec`` shows that the project,
the environment's settings and the command line are unchanged, whatever program ``exec`` runs. The
supervisor is asked whether the environment runs. SSH clients name their environment.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from danlu.cli.command_stamp import find_answer
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.foreground_exec import run_in_foreground, terminal_request
from danlu.engine.types import ExecRequest
from danlu.errors import DanluError
from danlu.util.danlu_program import CONTEXT_VARIABLE, LOCAL_CONTEXT
from danlu.util.paths import Paths

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: What :mod:`danlu.cli.program_command` exits with if danlu fails before the program starts.
_EXIT_NOT_STARTED = 125


def answer_environment_command(arguments: Sequence[str]) -> int | None:
    """Run the command in its running environment and return its exit code.

    Returns None for other commands, and if the program has to decide what to do.
    """
    if list(arguments[:2]) == ["ssh", "--stdio"]:
        return _serve_ssh(arguments)
    if arguments[:1] and arguments[0] == "exec":
        return _run_program(arguments)
    if "up" in arguments[:2]:
        return _open_shell(arguments)
    return None


def split_exec(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]] | None:
    """Return the words of ``danlu exec`` that select an environment, and the program's.

    Returns None if there are other options than ``-n``, which the program has to parse.
    """
    words = list(arguments[1:])
    selection = ["exec"]
    if words[:1] == ["-n"]:
        selection += words[:2]
        words = words[2:]
    if words[:1] == ["--"]:
        words = words[1:]
    elif words and words[0].startswith("-"):
        return None
    return (selection, tuple(words)) if words else None


def _run_program(arguments: Sequence[str]) -> int | None:
    if None in (sys.stdin, sys.stdout, sys.stderr):
        return None
    split = split_exec(arguments)
    answer = find_answer(split[0]) if split else None
    if split is None or answer is None:
        return None
    try:
        environment = EnvironmentDirectory(Path(answer["environment"]))
        if not environment.is_running():
            return None
        attached = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
        request = terminal_request(split[1]) if attached else ExecRequest(split[1])
        return run_in_foreground(environment, request)
    except KeyError:
        return None
    except DanluError as error:
        return _report_failure(arguments, error, _EXIT_NOT_STARTED)


def _open_shell(arguments: Sequence[str]) -> int | None:
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    answer = find_answer(arguments)
    if answer is None:
        return None
    try:
        environment = EnvironmentDirectory(Path(answer["environment"]))
        before, after = answer["before"], answer["after"]
        if not environment.is_running():
            return None
        _write_stderr(before)
        code = run_in_foreground(environment, terminal_request(()))
        if environment.is_running():
            _write_stderr(after)
    except KeyError:
        return None
    except DanluError as error:
        return _report_failure(arguments, error)
    return code


def _serve_ssh(arguments: Sequence[str]) -> int | None:
    """Serve the SSH client of a running environment of this machine."""
    from danlu.engine.ssh.connection_client import serve_by_listener
    from danlu.engine.ssh.keys import environment_keys

    is_local = sys.platform == "linux" and os.environ.get(CONTEXT_VARIABLE) == LOCAL_CONTEXT
    if not is_local or len(arguments) != 3 or "/" in arguments[2]:
        return None
    environment = EnvironmentDirectory(Paths.of().environments / arguments[2])
    if not environment.directory.is_dir() or not environment.is_running():
        return None
    try:
        environment_keys(environment).create_missing(environment.name)
        serve_by_listener(environment)
    except DanluError as error:
        return _report_failure(arguments, error)
    return 0


def _report_failure(arguments: Sequence[str], error: DanluError, code: int | None = None) -> int:
    from danlu.cli.program import report_error

    return report_error(arguments, error, code)


def _write_stderr(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()
