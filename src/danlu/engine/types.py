"""What an engine runs: environments, and programs inside them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Protocol

import msgspec


class ExecRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A program to run in a running environment, next to what already runs there.

    Attributes:
        args: The program and its arguments.
        environment: Variables in addition to the environment's own.
        directory: Working directory; empty for the environment's.
        user: A name or number of the image; empty for the environment's user.
        terminal: Whether the three streams are one terminal, which becomes the program's.
    """

    args: tuple[str, ...]
    environment: Mapping[str, str] = {}
    directory: str = ""
    user: str = ""
    terminal: bool = False


class ExecProcess(Protocol):
    """A program started by :class:`ExecClient`. It is killed if this side disconnects."""

    async def wait(self) -> int:
        """Wait until the program has ended; return its exit code, 128+n for signal n.

        126 and 127 mean as in shells that it cannot be executed or was not found. Raises
        :class:`~danlu.errors.DanluError` if it could not be started for another reason.
        """

    async def send_signal(self, number: int) -> None:
        """Send a signal to the program; do nothing if it has ended."""

    async def notify_resize(self) -> None:
        """Report that the size of its terminal has changed."""

    async def close(self) -> None:
        """Disconnect, which kills the program if it still runs."""


class ExecClient(Protocol):
    """Starts programs in one running environment."""

    async def start_exec(
        self, request: ExecRequest, *, stdin: int, stdout: int, stderr: int
    ) -> ExecProcess:
        """Start a program with three file descriptors of this process as its streams.

        The descriptors may be closed afterwards. Raises :class:`~danlu.errors.DanluError` if the
        environment does not run.
        """


class ResourceLimits(msgspec.Struct, frozen=True):
    """Resource limits of a container: CPU cores, bytes of memory, indexes of visible GPUs."""

    cpu: float | None = None
    memory: int | None = None
    gpus: tuple[int, ...] = ()


class VolumeMount(msgspec.Struct, frozen=True):
    """A directory or file of the host, mounted at ``target`` in a container."""

    source: Path
    target: str
    readonly: bool = False


class ContainerExit(msgspec.Struct, frozen=True):
    """How a container ended.

    ``code`` is 128+n for signal n. ``reason`` is ``OOMKilled``, ``Error``, ``Completed``, or
    ``StartError`` with a ``message`` if the container never started. ``time`` is set if the engine
    knows the end more precisely than the caller that waited.
    """

    code: int
    reason: str = ""
    message: str = ""
    time: datetime | None = None


class ResourceUsage(msgspec.Struct, frozen=True):
    """Resources used by a container's processes: CPU seconds so far, bytes of memory now."""

    cpu: float
    memory: int


class UsageRate(msgspec.Struct, frozen=True):
    """Usage over the last interval: CPU cores, None if not known yet; bytes of memory now."""

    cpu: float | None
    memory: int


class RunningContainer(Protocol):
    """A started container."""

    @property
    def pid(self) -> int | None:
        """Process id on the host of the container's first process, or None."""

    async def wait(self) -> ContainerExit:
        """Wait until the container and every process it left are gone; may be called repeatedly."""

    async def stop(self, *, grace: float) -> None:
        """Send SIGTERM to the main process, and SIGKILL to all after ``grace`` seconds."""

    def usage(self) -> ResourceUsage | None:
        """Return the current resource usage; None if it cannot be measured."""
