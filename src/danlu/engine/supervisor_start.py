"""Start an environment's supervisor, and wait until the environment runs."""

from __future__ import annotations

import time

from danlu.engine.environment_directory import EngineSettings, EnvironmentDirectory
from danlu.engine.supervisor_directory import SupervisorResponse
from danlu.engine.supervisor_spawn import spawn_supervisor
from danlu.errors import OutsideError
from danlu.util.json_codec import decode, encode
from danlu.util.paths import Paths

_START_TIMEOUT = 60.0
_POLL_SECONDS = 0.02


def start_supervisor(environment: EnvironmentDirectory, paths: Paths) -> bool:
    """Start the supervisor unless one runs; return whether it was started here.

    Two callers at the same time start one supervisor; both return when the environment runs.
    Raises :class:`DanluError` if the environment could not be started.
    """
    settings = EngineSettings(str(paths.config), str(paths.data), str(paths.state))
    report = spawn_supervisor(environment.directory, encode(settings))
    if report is None:
        _wait_until_running(environment)
        return False
    if not report:
        reason = environment.last_error() or "it printed no error"
        raise OutsideError(
            f"the supervisor of environment {environment.name} did not start: {reason}",
            hint=f"see {environment.supervisor_log}",
        )
    decode(report, SupervisorResponse).raise_error()
    return True


def _wait_until_running(environment: EnvironmentDirectory) -> None:
    """Wait for a supervisor that another process has started."""
    deadline = time.monotonic() + _START_TIMEOUT
    while (state := environment.read_state()).phase == "Starting":
        if time.monotonic() > deadline:
            raise OutsideError(
                f"environment {environment.name} has been starting for a minute",
                hint=f"see {environment.supervisor_log}",
            )
        time.sleep(_POLL_SECONDS)
    if state.phase != "Running":
        raise OutsideError(f"environment {environment.name} did not start: {state.reason}")
