"""The hosts of environments in the user's SSH configuration."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from danlu.commands.settings import Settings
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.ssh.keys import SshKeys
from danlu.engine.ssh.ssh_config import SshConfiguration, render_host
from danlu.util.danlu_program import danlu_program, directory_variables
from danlu.util.paths import Paths

_OFF = "off"


def ssh_keys(environment: EnvironmentDirectory) -> SshKeys:
    """Return the keys of an environment, which may not exist yet."""
    return SshKeys(environment.directory / "ssh")


def add_ssh_host(environment: EnvironmentDirectory, settings: Settings) -> None:
    """Create the environment's keys and its host ``NAME.danlu``; change nothing that exists.

    Raises :class:`OutsideError` if a file cannot be written.
    """
    keys = ssh_keys(environment)
    keys.create_missing(environment.name)
    _configuration_files(settings).add_host(environment.name, keys, program=_danlu_program())


def remove_ssh_host(name: str, settings: Settings) -> None:
    """Remove the host of an environment, if there is one."""
    with suppress(OSError):
        _configuration_files(settings).remove_host(name)


def render_ssh_host(environment: EnvironmentDirectory) -> str:
    """Return the block of the environment's host, and create its keys if needed."""
    keys = ssh_keys(environment)
    keys.create_missing(environment.name)
    return render_host(environment.name, keys, program=_danlu_program())


def _danlu_program() -> list[str]:
    """Return the words that run this danlu from any directory and environment."""
    variables = [f"{name}={value}" for name, value in directory_variables().items()]
    return ["/usr/bin/env", *variables, *danlu_program()] if variables else danlu_program()


def _configuration_files(settings: Settings) -> SshConfiguration:
    file = settings.config.ssh_config
    user_file = None if file == _OFF else Path(file).expanduser().absolute()
    return SshConfiguration(hosts_directory(settings.paths), user_file)


def hosts_directory(paths: Paths) -> Path:
    """Return the directory with a configuration file per environment."""
    return paths.config / "ssh.d"
