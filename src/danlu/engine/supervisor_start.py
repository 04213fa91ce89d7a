"""Start an environment's supervisor, and wait until the environment runs."""

from __future__ import annotations

import fcntl
import os
import select
import sys
import time
from contextlib import suppress

from danlu.engine.environment_directory import EngineSettings, EnvironmentDirectory
from danlu.engine.supervisor_directory import StartReport
from danlu.errors import DanluError, MachineError, OutsideError, UsageError
from danlu.util.json_codec import decode
from danlu.util.paths import Paths

_START_TIMEOUT_MS = 60_000
_CHUNK_SIZE = 1 << 16
_POLL_SECONDS = 0.02
_MIN_FD = 16
_ERRORS = {type.exit_code: type for type in (UsageError, OutsideError, MachineError)}


def start_supervisor(environment: EnvironmentDirectory, paths: Paths) -> bool:
    """Start the supervisor unless one runs; return whether it was started here.

    Two callers at the same time start one supervisor; both return when the environment runs.
    Raises :class:`DanluError` if the environment could not be started.
    """
    lock = os.open(environment.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _wait_until_running(environment)
            return False
        settings = EngineSettings(str(paths.config), str(paths.data), str(paths.state))
        environment.write_settings(settings)
        for directory in (environment.upper, environment.logs):
            directory.mkdir(exist_ok=True)
        # A client that connects before the supervisor listens must not reach an old socket.
        with suppress(FileNotFoundError):
            environment.control_socket.unlink()
        report = _wait_for_report(_spawn_supervisor(environment, lock))
    finally:
        os.close(lock)
    if not report:
        reason = environment.last_error() or "it printed no error"
        raise OutsideError(
            f"the supervisor of environment {environment.name} did not start: {reason}",
            hint=f"see {environment.supervisor_log}",
        )
    result = decode(report, StartReport)
    if result.error:
        error: type[DanluError] = _ERRORS.get(result.code, OutsideError)
        raise error(result.error, hint=result.hint)
    return True


def _wait_until_running(environment: EnvironmentDirectory) -> None:
    """Wait for a supervisor that another process has started."""
    deadline = time.monotonic() + _START_TIMEOUT_MS / 1000
    while (state := environment.read_state()).phase == "Starting":
        if time.monotonic() > deadline:
            raise OutsideError(
                f"environment {environment.name} has been starting for a minute",
                hint=f"see {environment.supervisor_log}",
            )
        time.sleep(_POLL_SECONDS)
    if state.phase != "Running":
        raise OutsideError(f"environment {environment.name} did not start: {state.reason}")


def _spawn_supervisor(environment: EnvironmentDirectory, lock: int) -> int:
    """Start the supervisor in a new session; return the descriptor of its report."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    log = os.open(environment.supervisor_log, flags, 0o600)
    stdin = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    streams = (stdin, log, log, writing, lock)
    # Move them above the target numbers, so that none is overwritten before it is duplicated.
    sources = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _MIN_FD) for fd in streams]
    actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(sources)]
    module = "danlu.engine.environment_supervisor"
    # 3 and 4 are the positions of the pipe and the lock in `streams`.
    command = [sys.executable, "-P", "-m", module, str(environment.directory), "3", "4"]
    try:
        os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setsid=True)
    finally:
        for descriptor in (writing, log, stdin, *sources):
            os.close(descriptor)
    return reading


def _wait_for_report(reading: int) -> bytes:
    """Return what the supervisor writes before it closes the pipe; empty if it says nothing."""
    report = b""
    poller = select.poll()
    poller.register(reading, select.POLLIN | select.POLLHUP)
    try:
        while poller.poll(_START_TIMEOUT_MS):
            data = os.read(reading, _CHUNK_SIZE)
            if not data:
                break
            report += data
    finally:
        os.close(reading)
    return report
