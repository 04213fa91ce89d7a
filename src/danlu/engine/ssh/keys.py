"""The keys of an environment's SSH connections, in its own state directory.

::

    ssh/client_key       the user's private key for this environment
        client_key.pub
        host_key         the server's private key
        authorized_keys  public keys of others, who log in on a TCP port
        known_hosts      the server's public key, under the alias of the environment
        transport.log    the log of connections; editors discard the stderr of `danlu ssh --stdio`
        server.sock      where the listener takes connections
        listener.log     its output
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.ssh.connection_client import SERVER_SOCKET, SSH_DIRECTORY
from danlu.errors import DanluError, OutsideError
from danlu.util.files import write_atomic
from danlu.util.locks import file_lock

HOST_SUFFIX = ".danlu"
"""What is appended to an environment's name in the user's SSH configuration."""


@dataclass(frozen=True, slots=True)
class SshKeys:
    """The files of one environment's connections; ``directory`` is only for them."""

    directory: Path

    @property
    def client_key(self) -> Path:
        """The user's private key; its public key is next to it, with the suffix ``.pub``."""
        return self.directory / "client_key"

    @property
    def client_public_key(self) -> Path:
        """The public key of the user, which the server accepts."""
        return self.directory / "client_key.pub"

    @property
    def authorized_keys(self) -> Path:
        """Further public keys that the server accepts; missing without ``danlu up --ssh-port``."""
        return self.directory / "authorized_keys"

    @property
    def host_key(self) -> Path:
        """The server's private key."""
        return self.directory / "host_key"

    @property
    def known_hosts(self) -> Path:
        """The server's public key, as clients pin it."""
        return self.directory / "known_hosts"

    @property
    def transport_log(self) -> Path:
        """The log of connections."""
        return self.directory / "transport.log"

    @property
    def server_socket(self) -> Path:
        """The Unix socket of :mod:`danlu.engine.ssh.connection_listener`."""
        return self.directory / SERVER_SOCKET

    @property
    def listener_log(self) -> Path:
        """The output of the listener that was started last."""
        return self.directory / "listener.log"

    def create_missing(self, name: str) -> None:
        """Create the keys of environment ``name`` unless they exist.

        Raises :class:`OutsideError` if the directory cannot be written.
        """
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Also one that an earlier umask or a copy has opened.
            self.directory.chmod(0o700)
            with file_lock(self.directory / "lock"):
                if not self.known_hosts.exists():
                    self._create_keys(name)
        except OSError as error:
            raise OutsideError(
                f"cannot create the SSH keys of {name}: {error.strerror}: {error.filename}"
            ) from error

    def record_failure(self, error: DanluError) -> None:
        """Write why a connection was not served to the transport's log, if there is a directory."""
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {error}\n"
        with suppress(OSError), self.transport_log.open("a") as file:
            file.write(line)

    def _create_keys(self, name: str) -> None:
        """Write both key pairs; ``known_hosts`` is written last and means all are there."""
        # Loaded for the first `danlu up` of an environment only.
        from danlu.util.ssh_keys import generate_ed25519_keys

        client_private, client_public = generate_ed25519_keys()
        host_private, host_public = generate_ed25519_keys()
        write_atomic(self.client_key, client_private, mode=0o600)
        write_atomic(self.client_public_key, client_public + b" danlu " + name.encode() + b"\n")
        write_atomic(self.host_key, host_private, mode=0o600)
        alias = f"{name}{HOST_SUFFIX} ".encode()
        write_atomic(self.known_hosts, alias + host_public + b"\n", mode=0o600)


def environment_keys(environment: EnvironmentDirectory) -> SshKeys:
    """Return the keys of an environment, which may not exist yet."""
    return SshKeys(environment.directory / SSH_DIRECTORY)
