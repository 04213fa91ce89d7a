"""What the supervisor of a job asks of the engine that runs its replicas.

A replica is run as a pod: its init containers one after the other, then its containers together.
The container named by the framework (else the first) is the *main* one: its end is the replica's,
and the others are ended with it. The engine runs one container and knows nothing of jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec

from danlu.training.types import ReplicaId

__all__ = ["Container", "Engine", "Exit", "Limits", "Running", "Usage", "Volume"]


class Limits(msgspec.Struct, frozen=True):
    """The resources of a container: cores, bytes, and the GPUs of this machine it may see."""

    cpu: float | None = None
    memory: int | None = None
    gpus: tuple[int, ...] = ()


class Volume(msgspec.Struct, frozen=True):
    """A directory or file of this machine's, seen by a container at ``target``."""

    source: Path
    target: str
    readonly: bool = False


class Container(msgspec.Struct, frozen=True):
    """One container of one attempt at a replica, with nothing left to look up.

    ``args`` may be empty, which is the image's own command; with ``arguments`` they follow the
    image's entry point (a manifest's ``args`` without ``command``). ``environment`` is what the
    job says, not yet laid over the image's or this process's. ``image`` is the config digest of an
    image of the store, empty for a process. ``host`` and ``address`` are the replica's own,
    ``hosts`` those of all by name; ``ports`` are the ports it declares, by name. ``mark`` is
    unique to the attempt.
    """

    replica: ReplicaId
    attempt: int
    name: str
    mark: str
    args: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    image: str = ""
    limits: Limits = Limits()
    volumes: tuple[Volume, ...] = ()
    host: str = ""
    address: str = ""
    hosts: Mapping[str, str] = {}
    ports: Mapping[str, int] = {}
    arguments: bool = False


class Exit(msgspec.Struct, frozen=True):
    """How a container ended: 128+n for signal n; ``reason`` is ``OOMKilled``, ``Error``,
    ``Completed`` or, where it never started, ``StartError`` with a ``message``. ``time`` is when
    it ended, where that is known better than by who waited for it.
    """

    code: int
    reason: str = ""
    message: str = ""
    time: datetime | None = None


class Usage(msgspec.Struct, frozen=True):
    """What a container's processes used: seconds of CPU so far, bytes of memory now."""

    cpu: float
    memory: int


class Running(Protocol):
    """A container that was started."""

    @property
    def pid(self) -> int | None:
        """The process of this machine that stands for it."""

    async def wait(self) -> Exit:
        """Its end, as often as asked; every process it left is gone then."""

    async def end(self, *, grace: float) -> None:
        """SIGTERM to its main process, SIGKILL to all of its processes ``grace`` seconds later."""

    def usage(self) -> Usage | None:
        """What it uses; None where that cannot be known."""


class Engine(Protocol):
    """Runs containers; one object a job, used inside its supervisor."""

    def warnings(self) -> Sequence[str]:
        """What of a job it cannot keep on this machine (``resources: not enforced: …``)."""

    async def start(self, container: Container, *, output: int) -> Running:
        """Start it with standard output and errors at the descriptor ``output``, no input.

        Raises :class:`danlu.errors.MachineError` where it cannot be started here.
        """

    async def exec(
        self,
        running: Running,
        args: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int,
        stdout: int,
        stderr: int,
    ) -> Running:
        """Run a further program beside a running container, as ``kubectl exec`` does (MPI)."""

    async def close(self) -> None:
        """End and remove all that it made."""
