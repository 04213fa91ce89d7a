"""The interface between a job's supervisor and the engine that runs its replicas.

A replica runs like a pod: first its init containers one by one, then its other containers together.
The container that the framework names (or else the first one) is the *main* container: when it
ends, the replica ends, and the sidecars are stopped. An engine runs single containers and knows
nothing about jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from danlu.engine.types import ResourceLimits, RunningContainer
from danlu.sandbox.types import Mount
from danlu.training.types import ReplicaId


class ContainerSpec(msgspec.Struct, frozen=True):
    """A container of one attempt at a replica, with all references resolved.

    Attributes:
        mark: Unique to the attempt.
        args: Empty to run the image's own command.
        environment: The job's variables; the engine adds the image's or the host's below them.
        image: Config digest of an image in the store; empty to run a process on the host.
        host: The replica's own host name; ``address`` is its IP address, ``hosts`` maps the names
            of all replicas to addresses.
        ports: Declared container ports by name.
        arguments: ``args`` follow the image's entry point (``args`` without ``command`` in the
            manifest).
        defaults: Variables set only if neither the job nor the image (for a process: the
            supervisor's environment) sets them.
    """

    replica: ReplicaId
    attempt: int
    name: str
    mark: str
    args: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    image: str = ""
    limits: ResourceLimits = ResourceLimits()
    volumes: tuple[Mount, ...] = ()
    host: str = ""
    address: str = ""
    hosts: Mapping[str, str] = {}
    ports: Mapping[str, int] = {}
    arguments: bool = False
    defaults: Mapping[str, str] = {}


class ReplicaEngine(Protocol):
    """Runs containers; each supervisor has one object per engine."""

    def warnings(self) -> Sequence[str]:
        """Return what the host could not enforce or provide (``resources: not enforced: …``)."""

    async def start(self, container: ContainerSpec, *, output: int) -> RunningContainer:
        """Start a container with stdout and stderr at the descriptor ``output`` and no stdin.

        Raises :class:`danlu.errors.MachineError` if it cannot be started on this machine.
        """

    async def exec(
        self,
        running: RunningContainer,
        args: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
    ) -> RunningContainer:
        """Run another program in a running container, like ``kubectl exec`` (used by MPI)."""

    async def close(self) -> None:
        """Stop and remove everything that the engine created."""
