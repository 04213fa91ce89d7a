"""Hosts ``NAME.CONTEXT.danlu`` in this machine's SSH configuration for another one's environments.

Their ``ProxyCommand`` is ``danlu ssh --stdio NAME`` in the context, so the connection of the editor
is inside the one to the machine, and only the machine's own SSH server listens.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.settings import Settings
from danlu.engine.ssh.keys import SshKeys
from danlu.engine.ssh.ssh_config import host_name, render_host
from danlu.environments.ssh_hosts import danlu_command, ssh_configuration
from danlu.errors import OutsideError
from danlu.remote.environment_access import RemoteEnvironment
from danlu.util.files import write_atomic
from danlu.util.paths import Paths


class ContextHosts:
    """The SSH hosts of one context's environments."""

    def __init__(self, context: str, settings: Settings) -> None:
        self._context = context
        self._settings = settings
        self._directory = _context_directory(context, settings.paths)

    def update(self, environments: Sequence[RemoteEnvironment]) -> list[str]:
        """Configure exactly these environments; return the hosts that are new.

        Raises :class:`OutsideError` if a file cannot be written.
        """
        configuration = ssh_configuration(self._settings)
        known = set(self.list_names())
        try:
            for environment in environments:
                self._write_keys(environment)
        except OSError as error:
            raise OutsideError(f"cannot write {error.filename}: {error.strerror}") from error
        hosts = []
        for environment in environments:
            name = environment.name
            if self.exists_here(name):
                continue
            configuration.add_host(
                name,
                self._find_keys(name),
                program=danlu_command(self._context),
                context=self._context,
            )
            if name not in known:
                hosts.append(host_name(name, self._context))
        for name in known - {environment.name for environment in environments}:
            self._remove_host(name)
        return hosts

    def remove_all(self) -> None:
        """Remove the hosts and keys of all environments."""
        for name in self.list_names():
            self._remove_host(name)
        with suppress(OSError):
            self._directory.rmdir()

    def render(self, name: str) -> str:
        """Return the block of an environment's host."""
        return render_host(
            name, self._find_keys(name), program=danlu_command(self._context), context=self._context
        )

    def exists_here(self, name: str) -> bool:
        """Return whether an environment of this machine has the name ``NAME.CONTEXT``."""
        label = f"{name}.{self._context}"
        return EnvironmentDirectory(self._settings.paths.environments / label).exists()

    def list_names(self) -> list[str]:
        """Return the names of the environments that are configured."""
        try:
            return sorted(path.name for path in self._directory.iterdir())
        except FileNotFoundError:
            return []

    def _write_keys(self, environment: RemoteEnvironment) -> None:
        keys = self._find_keys(environment.name)
        keys.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        alias = host_name(environment.name, self._context)
        contents = {
            keys.client_key: environment.client_key,
            keys.known_hosts: f"{alias} {environment.host_key}\n",
        }
        for path, text in contents.items():
            if not path.exists() or path.read_text() != text:
                write_atomic(path, text.encode(), mode=0o600)

    def _remove_host(self, name: str) -> None:
        with suppress(OSError):
            if not self.exists_here(name):
                ssh_configuration(self._settings).remove_host(name, self._context)
            shutil.rmtree(self._directory / name)

    def _find_keys(self, name: str) -> SshKeys:
        return SshKeys(self._directory / name)


def _context_directory(context: str, paths: Paths) -> Path:
    return paths.data / "contexts" / context / "ssh"
