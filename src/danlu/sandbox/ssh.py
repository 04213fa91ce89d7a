"""An ssh agent for one run: its socket and the hosts the caller knows, never a key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from danlu.errors import UsageError
from danlu.sandbox.trust import DIRECTORY
from danlu.sandbox.types import Mount

__all__ = ["agent", "environment", "mounts"]

_SOCKET = f"{DIRECTORY}/ssh-agent"
_KNOWN = f"{DIRECTORY}/ssh_known_hosts"


def agent(environ: Mapping[str, str] | None = None) -> Path:
    """The socket of the caller's own agent.

    Raises :class:`UsageError` where none runs.
    """
    env = os.environ if environ is None else environ
    socket = env.get("SSH_AUTH_SOCK", "")
    if not socket or not Path(socket).is_socket():
        raise UsageError(
            "--ssh needs an ssh agent, and none runs",
            hint="start one: eval $(ssh-agent) && ssh-add",
        )
    return Path(socket).absolute()


def mounts(socket: Path, environ: Mapping[str, str] | None = None) -> tuple[Mount, ...]:
    """The agent at ``socket``, and the user's known hosts where there is such a file."""
    known = _known_hosts(os.environ if environ is None else environ)
    return (
        Mount(_SOCKET, socket, readonly=True),
        *([Mount(_KNOWN, known, readonly=True)] if known else []),
    )


def environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that point ssh and git to what :func:`mounts` mounts."""
    env = os.environ if environ is None else environ
    found = {"SSH_AUTH_SOCK": _SOCKET}
    if _known_hosts(env):
        found["GIT_SSH_COMMAND"] = f"ssh -o GlobalKnownHostsFile={_KNOWN}"
    return found


def _known_hosts(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("HOME", "")
    path = Path(home) / ".ssh/known_hosts"
    return path if home and path.is_file() else None
