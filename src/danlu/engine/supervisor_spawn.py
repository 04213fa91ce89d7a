"""Start an environment's supervisor and wait for its report, without a codec of structs."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from danlu.engine.control_client import CONTROL_SOCKET, SUPERVISOR_LOCK
from danlu.engine.detached_process import FIRST_FD, read_report, spawn_module

SETTINGS_FILE = "settings.json"
SUPERVISOR_LOG = "supervisor.log"
#: What a supervisor reports when the environment runs.
STARTED = b"{}"


def environment_lock_file(root: str | os.PathLike[str], name: str) -> str:
    """Return the lock for creating, starting, renaming or removing an environment below ``root``.

    No environment has a name that starts with a dot, but one may be called `other.lock`.
    """
    return os.path.join(root, f".{name}.lock")


def spawn_supervisor(directory: str | os.PathLike[str], settings: bytes = b"") -> bytes | None:
    """Start the supervisor of the environment with this directory, and return its report.

    ``settings`` are an :class:`~danlu.engine.environment_directory.EngineSettings`; without them it
    gets those of the last start. Returns None if a supervisor runs already, and nothing if it ended
    without a report.
    """
    path = os.path.join(directory, SUPERVISOR_LOCK)
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        if settings:
            with open(os.path.join(directory, SETTINGS_FILE), "wb") as file:
                file.write(settings)
        for name in ("upper", "logs"):
            os.makedirs(os.path.join(directory, name), exist_ok=True)
        # A client that connects before the supervisor listens must not reach an old socket.
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, CONTROL_SOCKET))
        reading = spawn_module(
            "danlu.engine.supervisor_process",
            (os.fspath(directory), str(FIRST_FD), str(FIRST_FD + 1)),
            os.path.join(directory, SUPERVISOR_LOG),
            descriptors=(lock,),
        )
        return read_report(reading)
    finally:
        os.close(lock)
