"""The caller's ssh agent for one run: its socket and the hosts it knows, never a key."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from danlu.errors import UsageError
from danlu.sandbox.trust import DIRECTORY
from danlu.sandbox.types import Mount

__all__ = ["environment", "mounts"]

_SOCKET = f"{DIRECTORY}/ssh-agent"
_KNOWN = f"{DIRECTORY}/ssh_known_hosts"


def mounts(environ: Mapping[str, str] | None = None) -> tuple[Mount, ...]:
    """The agent's socket, and the user's known hosts where there is such a file.

    Raises :class:`UsageError` where no agent runs.
    """
    env = os.environ if environ is None else environ
    socket = env.get("SSH_AUTH_SOCK", "")
    if not socket or not Path(socket).is_socket():
        raise UsageError(
            "--ssh needs an ssh agent, and none runs",
            hint="start one: eval $(ssh-agent) && ssh-add",
        )
    known = _known_hosts(env)
    return (
        Mount(_SOCKET, Path(socket), readonly=True),
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
