"""Secrets and the ssh agent for one run: mounted into it, never on a disk or in a layer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from danlu.errors import UsageError
from danlu.sandbox import _linux
from danlu.sandbox.mounts import temporary_tmpfs
from danlu.sandbox.network_env import RUN_DIRECTORY
from danlu.sandbox.types import Mount

_AGENT_SOCKET = f"{RUN_DIRECTORY}/ssh-agent"
_KNOWN_HOSTS = f"{RUN_DIRECTORY}/ssh_known_hosts"


@contextmanager
def mount_secrets(
    wanted: Sequence[tuple[str, str]],
    values: Mapping[str, Path],
    *,
    work: Path,
    uid: int = 0,
    gid: int = 0,
) -> Iterator[tuple[Mount, ...]]:
    """Yield read-only mounts for ``wanted``, pairs of (id, absolute path inside).

    ``values`` are the files on this machine that contain them. Inside, they belong to ``uid`` and
    ``gid`` and nobody else can read them. Raises :class:`UsageError` for an id without a value.
    """
    _check_secrets(wanted, values)
    if not wanted:
        yield ()
        return
    place = work / f"secrets.{os.urandom(6).hex()}"
    flags = _linux.MS_NOSUID | _linux.MS_NODEV
    # In memory and in our mount namespace: nothing is left on the disk, however this process ends.
    with temporary_tmpfs(place, options="mode=700,size=16m", flags=flags):
        yield tuple(
            Mount(
                target,
                _copy_secret(values[name], place / str(number), uid, gid),
                readonly=True,
                private=True,
            )
            for number, (name, target) in enumerate(wanted)
        )


def _check_secrets(wanted: Sequence[tuple[str, str]], values: Mapping[str, Path]) -> None:
    missing = sorted({name for name, _ in wanted if name not in values})
    if missing:
        raise UsageError(
            f"missing value for the secret {', '.join(missing)}",
            hint=" ".join(f"--secret id={name},src=FILE" for name in missing),
        )
    for name in sorted({name for name, _ in wanted}):
        if not os.access(values[name], os.R_OK) or not values[name].is_file():
            raise UsageError(f"cannot read the file of the secret {name}: {values[name]}")


def _copy_secret(source: Path, target: Path, uid: int, gid: int) -> Path:
    # Copied, not bind-mounted, because inside it must belong to the step's user.
    data = source.read_bytes()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.chown(target, uid, gid)
    return target


def find_agent_socket(environ: Mapping[str, str] | None = None) -> Path:
    """Return the socket of the user's ssh agent. Raises :class:`UsageError` if none runs."""
    env = os.environ if environ is None else environ
    socket = env.get("SSH_AUTH_SOCK", "")
    if not socket or not Path(socket).is_socket():
        raise UsageError(
            "--ssh needs a running ssh agent",
            hint="start one: eval $(ssh-agent) && ssh-add",
        )
    return Path(socket).absolute()


def agent_mounts(socket: Path, environ: Mapping[str, str] | None = None) -> tuple[Mount, ...]:
    """Return mounts of the agent at ``socket`` and of the user's known_hosts file, if it exists.

    Only the socket is mounted, never a key.
    """
    known = _find_known_hosts(os.environ if environ is None else environ)
    return (
        Mount(_AGENT_SOCKET, socket, readonly=True),
        *([Mount(_KNOWN_HOSTS, known, readonly=True)] if known else []),
    )


def agent_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that make ssh and git use what :func:`agent_mounts` mounts."""
    env = os.environ if environ is None else environ
    variables = {"SSH_AUTH_SOCK": _AGENT_SOCKET}
    if _find_known_hosts(env):
        # In the place of the system-wide file, so that the image's own ~/.ssh/known_hosts counts
        # too.
        variables["GIT_SSH_COMMAND"] = f"ssh -o GlobalKnownHostsFile={_KNOWN_HOSTS}"
    return variables


def _find_known_hosts(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("HOME", "")
    path = Path(home) / ".ssh/known_hosts"
    return path if home and path.is_file() else None
