"""Open a shell in the environment of a repeated ``danlu up``, without loading the program.

The stamp (:mod:`danlu.cli.command_stamp`) shows that the project, the environment's settings and
the command line are unchanged. The supervisor is asked whether the environment runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from danlu.cli.command_stamp import find_answer
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.foreground_exec import run_in_foreground, terminal_request
from danlu.errors import DanluError

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def enter_running_environment(arguments: Sequence[str]) -> int | None:
    """Open a shell in the running environment and return its exit code.

    Returns None if the program has to decide what to do.
    """
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
        from danlu.cli.program import report_error

        return report_error(arguments, error)
    return code


def _write_stderr(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()
