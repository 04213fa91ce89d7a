"""Start a stopped environment as it was started before, without loading the program."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from danlu.cli.command_stamp import find_answer
from danlu.engine.environment_directory import EnvironmentDirectory, lock_environment
from danlu.engine.supervisor_start import start_supervisor
from danlu.errors import DanluError
from danlu.util.paths import Paths


def start_as_before(arguments: Sequence[str], answer: Mapping[str, Any]) -> bool:
    """Start the environment of an answer that :mod:`danlu.cli.command_stamp` has found.

    Returns False if it could not be started: the program then does it again, and reports why.
    """
    environment, paths = EnvironmentDirectory(Path(answer["environment"])), Paths.of()
    with lock_environment(paths.environments, environment.name):
        # Another process may have changed or removed the environment before we got the lock.
        if find_answer(arguments) != answer:
            return False
        try:
            started = start_supervisor(environment, paths)
        except DanluError:
            return False
    if started and answer["after"]:  # which is empty with -q
        notes = (f"note: {text}\n" for text in environment.read_state().warnings)
        sys.stderr.write("".join(notes))
    return True
