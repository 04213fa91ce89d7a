"""How another machine's environments are reached: ports, keys and directories.

As a program on that machine, ``python -m danlu.remote.environment_access`` writes an
:class:`AccessList` as JSON to stdout. It contains private keys, which open nothing but the
environments themselves to somebody who can already log in there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from danlu.engine.environment_directory import (
    EnvironmentDirectory,
    check_environment_name,
    list_environments,
)
from danlu.engine.ssh.keys import environment_keys
from danlu.environments.editors import project_directory
from danlu.errors import DanluError, OutsideError, StoreError
from danlu.util.decoding import decode_json
from danlu.util.paths import Paths

_PRIVATE_KEY = re.compile(
    r"-----BEGIN OPENSSH PRIVATE KEY-----\n[A-Za-z0-9+/=\n]{1,4096}"
    r"-----END OPENSSH PRIVATE KEY-----\n"
)
_PUBLIC_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/=]{1,1024}")
_DIRECTORY = re.compile(r"/[A-Za-z0-9/_.-]{0,255}")


class TunnelPort(msgspec.Struct, frozen=True, order=True):
    """A port of the other machine: where it is listened on there."""

    address: str
    port: int


class RemoteEnvironment(msgspec.Struct, frozen=True):
    """An environment of another machine.

    ``ports`` are empty unless it runs; ``directory`` is what an editor opens; ``client_key`` is a
    private key and ``host_key`` a public key, both in OpenSSH's formats.
    """

    name: str
    directory: str
    client_key: str
    host_key: str
    ports: tuple[TunnelPort, ...] = ()


class AccessList(msgspec.Struct, frozen=True):
    """All environments of a machine."""

    environments: tuple[RemoteEnvironment, ...] = ()


def parse_access_list(data: bytes, host: str) -> AccessList:
    """Parse and check what the machine ``host`` has written.

    Raises :class:`OutsideError` if it is not an access list, or contains something that must not
    become part of an SSH configuration.
    """
    try:
        access = decode_json(data, AccessList)
        for environment in access.environments:
            check_environment_name(environment.name)
    except (msgspec.MsgspecError, DanluError) as error:
        raise OutsideError(f"cannot list the environments of {host}: {error}") from error
    for environment in access.environments:
        valid = (
            _PRIVATE_KEY.fullmatch(environment.client_key)
            and _PUBLIC_KEY.fullmatch(environment.host_key)
            and _DIRECTORY.fullmatch(environment.directory)
        )
        if not valid:
            raise OutsideError(f"{host} describes environment {environment.name} wrongly")
    return access


def list_access(paths: Paths) -> AccessList:
    """Return how the environments of this machine are reached; create missing keys."""
    return AccessList(tuple(_describe_environments(paths)))


def _describe_environments(paths: Paths) -> Iterator[RemoteEnvironment]:
    for environment in list_environments(paths.environments):
        # One that is damaged cannot be started, and one that is being removed not be reached.
        with suppress(StoreError, FileNotFoundError):
            yield _describe_access(environment)


def _describe_access(environment: EnvironmentDirectory) -> RemoteEnvironment:
    keys = environment_keys(environment)
    keys.create_missing(environment.name)
    _, _, host_key = keys.known_hosts.read_text().strip().partition(" ")
    ports = environment.read_spec().ports if environment.is_running() else ()
    return RemoteEnvironment(
        environment.name,
        project_directory(environment),
        keys.client_key.read_text(),
        host_key,
        tuple(TunnelPort(port.address, port.host_port) for port in ports),
    )


def main() -> int:
    """Write the list to stdout; return the exit code."""
    try:
        access = list_access(Paths.of())
    except DanluError as error:
        print(error.message, file=sys.stderr)
        return error.exit_code
    sys.stdout.buffer.write(msgspec.json.encode(access))
    return 0


if __name__ == "__main__":
    sys.exit(main())
