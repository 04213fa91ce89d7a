"""SSH to environments: OpenSSH's client, and serving one connection."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.settings import Settings
from danlu.engine.ssh.keys import environment_keys
from danlu.engine.ssh.ssh_config import host_name
from danlu.engine.ssh.stdio_service import serve_by_listener
from danlu.environments.ssh_hosts import add_ssh_host, hosts_directory
from danlu.errors import DanluError, MachineError, UsageError


def ssh_client_command(
    environment: EnvironmentDirectory, settings: Settings, args: tuple[str, ...]
) -> list[str]:
    """Return the command line of OpenSSH's client for a shell or a command line.

    Raises :class:`MachineError` if ssh was not found.
    """
    program = shutil.which("ssh")
    if program is None:
        raise MachineError(
            "ssh was not found",
            hint=f"install openssh-client, or use `danlu exec -n {environment.name}`",
        )
    add_ssh_host(environment, settings)
    # Its own file alone, so that it works whatever the user's configuration contains.
    file = hosts_directory(settings.paths) / f"{environment.name}.conf"
    return [program, "-F", str(file), "--", host_name(environment.name), *args]


def require_running(
    environment: EnvironmentDirectory, settings: Settings, *, interactive: bool
) -> Iterator[str]:
    """Start an environment that does not run, if a person is waiting; yield notes for the user.

    An editor reconnects by itself, and who stopped the environment wanted it stopped. Raises
    :class:`UsageError` in these cases.
    """
    if environment.is_running():
        return
    if not interactive or environment.read_state().stopped_by_user:
        raise UsageError(
            f"environment {environment.name} is not running",
            hint=f"start it with `danlu start {environment.name}`",
        )
    from danlu.environments.up import restart_environment  # few connections start one

    yield f"starting {environment.name}"
    yield from restart_environment(environment.name, settings).notes


def serve_ssh(name: str, settings: Settings) -> None:
    """Serve an SSH client on stdin and stdout: the ``ProxyCommand`` of ``NAME.danlu``.

    What goes wrong is also written to the transport's log. Raises
    :class:`~danlu.errors.DanluError` if the environment cannot be reached, or the client did not
    log in.
    """
    environment = EnvironmentDirectory(settings.paths.environments / name)
    if "/" in name or not environment.directory.exists():
        from danlu.environments.manage import find_environment

        environment = find_environment(name, settings.paths)
    keys = environment_keys(environment)
    keys.create_missing(name)
    try:
        for note in require_running(environment, settings, interactive=_has_terminal()):
            print(f"danlu: {note}", file=sys.stderr)
    except DanluError as error:
        keys.record_failure(error)
        raise
    serve_by_listener(environment.directory)


def _has_terminal() -> bool:
    """Return whether a person sees our messages; the streams belong to the SSH client."""
    return sys.stderr is not None and sys.stderr.isatty()
