"""The hosts of environments in the user's SSH configuration."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.settings import Settings
from danlu.engine.ssh.keys import environment_keys
from danlu.engine.ssh.ssh_config import SshConfiguration, render_host
from danlu.errors import DanluError
from danlu.util.danlu_program import (
    CONTEXT_VARIABLE,
    LOCAL_CONTEXT,
    danlu_program,
    directory_variables,
)
from danlu.util.paths import Paths

_OFF = "off"


def add_ssh_host(environment: EnvironmentDirectory, settings: Settings) -> None:
    """Create the environment's keys and its host ``NAME.danlu``; change nothing that exists.

    Raises :class:`OutsideError` if a file cannot be written.
    """
    keys = environment_keys(environment)
    keys.create_missing(environment.name)
    ssh_configuration(settings).add_host(environment.name, keys, program=danlu_command())


def configure_ssh(environment: EnvironmentDirectory, settings: Settings) -> list[str]:
    """Add the environment's host (:func:`add_ssh_host`); return a note if that failed."""
    try:
        add_ssh_host(environment, settings)
    except DanluError as error:
        return [f"no ssh to {environment.name}: {error}"]
    return []


def remove_ssh_host(name: str, settings: Settings) -> None:
    """Remove the host of an environment, if there is one."""
    with suppress(OSError):
        ssh_configuration(settings).remove_host(name)


def render_ssh_host(environment: EnvironmentDirectory) -> str:
    """Return the block of the environment's host, and create its keys if needed."""
    keys = environment_keys(environment)
    keys.create_missing(environment.name)
    return render_host(environment.name, keys, program=danlu_command())


def danlu_command(context: str = LOCAL_CONTEXT) -> list[str]:
    """Return the command that runs danlu in a context, from any directory and environment."""
    # Set explicitly, because the user's current context may be another one.
    variables = {CONTEXT_VARIABLE: context, **directory_variables()}
    words = [f"{name}={value}" for name, value in variables.items()]
    return ["/usr/bin/env", *words, *danlu_program()]


def ssh_configuration(settings: Settings) -> SshConfiguration:
    """Return the user's SSH configuration and danlu's files that it includes."""
    file = settings.config.ssh_config
    user_file = None if file == _OFF else Path(file).expanduser().absolute()
    return SshConfiguration(hosts_directory(settings.paths), user_file)


def hosts_directory(paths: Paths) -> Path:
    """Return the directory with a configuration file per environment."""
    return paths.config / "ssh.d"
