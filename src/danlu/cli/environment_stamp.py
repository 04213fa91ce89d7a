"""Enter environments without loading the program: ``danlu up``, ``exec`` and ``ssh``.

The stamp (:mod:`danlu.cli.command_stamp`) of a repeated ``up`` or ``exec`` shows that the project,
the environment's settings and the command line are unchanged, whatever program ``exec`` runs. The
lock of the supervisor says whether the environment runs; ``up`` starts a stopped one, and leaves it
to the program to do it again if that fails. SSH clients name their environment.
"""

from __future__ import annotations

import os
import sys

from danlu.cli.command_stamp import data_directory, find_answer
from danlu.engine.control_client import (
    CONTROL_SOCKET,
    STATE_FILE,
    SUPERVISOR_LOCK,
    terminal_variables,
)
from danlu.engine.foreground_exec import exec_in_foreground
from danlu.engine.ssh.stdio_service import serve_by_listener
from danlu.engine.supervisor_spawn import STARTED, environment_lock_file, spawn_supervisor
from danlu.util.danlu_program import CONTEXT_VARIABLE, LOCAL_CONTEXT
from danlu.util.locks import file_lock, lock_is_held

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(32), ord('"'), ord("\\"))}
#: What :mod:`danlu.cli.program_command` exits with if danlu fails before the program starts.
_EXIT_NOT_STARTED = 125


def answer_environment_command(arguments: Sequence[str]) -> int | None:
    """Run the command in its running environment and return its exit code.

    Returns None for other commands, and if the program has to decide what to do.
    """
    code = None
    try:
        if list(arguments[:2]) == ["ssh", "--stdio"]:
            return _serve_ssh(arguments)
        if arguments[:1] and arguments[0] == "exec":
            code = _EXIT_NOT_STARTED
            return _run_program(arguments)
        if "up" in arguments[:2]:
            return _open_shell(arguments)
    except Exception as error:
        from danlu.cli.program import report_error

        return report_error(arguments, error, code)
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
    attached = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    try:
        directory = answer["environment"]
        request = encode_exec_request(split[1], terminal=attached)
    except (KeyError, UnicodeEncodeError):
        return None
    if not _is_running(directory):
        return None
    return exec_in_foreground(directory, request, terminal=attached)


def _open_shell(arguments: Sequence[str]) -> int | None:
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    answer = find_answer(arguments)
    if answer is None:
        return None
    try:
        directory, before, after = answer["environment"], answer["before"], answer["after"]
    except KeyError:
        return None
    can_start = "starts" in answer
    if not _is_running(directory) and not (can_start and _start_as_before(arguments, answer)):
        return None
    _write_stderr(before)
    code = exec_in_foreground(directory, encode_exec_request((), terminal=True), terminal=True)
    if _is_running(directory):
        _write_stderr(after)
    return code


def _start_as_before(arguments: Sequence[str], answer: Mapping[str, str]) -> bool:
    """Start the stopped environment of an answer; return False if the program has to do it."""
    directory = answer["environment"]
    with file_lock(environment_lock_file(*os.path.split(directory))):
        # Another process may have changed or removed the environment before we got the lock.
        if find_answer(arguments) != answer:
            return False
        report = spawn_supervisor(directory)
        if report not in (None, STARTED):
            return False
    if report and answer["after"]:  # which is empty with -q
        import json

        with open(os.path.join(directory, STATE_FILE), encoding="utf-8") as file:
            warnings = json.load(file).get("warnings", ())
        _write_stderr("".join(f"note: {text}\n" for text in warnings))
    return True


def _serve_ssh(arguments: Sequence[str]) -> int | None:
    """Serve the SSH client of a running environment of this machine."""
    is_local = sys.platform == "linux" and os.environ.get(CONTEXT_VARIABLE) == LOCAL_CONTEXT
    if not is_local or len(arguments) != 3 or "/" in arguments[2]:
        return None
    directory = os.path.join(data_directory(), "environments", arguments[2])
    if not _is_running(directory):
        return None
    serve_by_listener(directory)
    return 0


def _is_running(directory: str) -> bool:
    """Return whether the environment runs; one that is being started does not yet."""
    is_listening = os.path.exists(os.path.join(directory, CONTROL_SOCKET))
    return is_listening and lock_is_held(os.path.join(directory, SUPERVISOR_LOCK))


def encode_exec_request(args: Sequence[str], *, terminal: bool) -> bytes:
    """Do what :func:`danlu.engine.environment_control.encode_exec` does, without its imports.

    Raises :class:`UnicodeEncodeError` if an argument is not UTF-8.
    """
    words = ",".join(map(_json_string, args))
    variables = terminal_variables() if terminal else {}
    pairs = ",".join(
        f"{_json_string(name)}:{_json_string(value)}" for name, value in variables.items()
    )
    request = f'"args":[{words}],"environment":{{{pairs}}},"terminal":{str(terminal).lower()}'
    return f'{{"type":"exec","exec":{{{request}}}}}'.encode()


def _json_string(text: str) -> str:
    """Return the JSON string of a text; json takes half as long to load as the interpreter."""
    return f'"{text.translate(_JSON_ESCAPES)}"'


def _write_stderr(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()
