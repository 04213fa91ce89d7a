"""What an engine runs: environments, and programs inside them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import msgspec

from danlu.sandbox.types import ContainerExit, ResourceUsage


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


#: The reason of a :class:`ContainerExit` of a program elsewhere that can no longer be reached.
CONNECTION_LOST = "ConnectionLost"


class UsageRate(msgspec.Struct, frozen=True):
    """Usage over the last interval: CPU cores, None if not known yet; bytes of memory now.

    ``gpu`` is the mean utilization of the GPUs, 0 to 1, and ``gpu_memory`` the bytes in use on
    them; None if unknown.
    """

    cpu: float | None
    memory: int
    gpu: float | None = None
    gpu_memory: int | None = None


class RunningContainer(Protocol):
    """A started container."""

    @property
    def pid(self) -> int | None:
        """Process id on the host of the container's first process, or None."""

    async def wait(self) -> ContainerExit:
        """Wait until the container and every process it left are gone; may be called repeatedly."""

    async def stop(self, *, grace: float) -> None:
        """Send the main process its stop signal, and SIGKILL to all after ``grace`` seconds."""

    def usage(self) -> ResourceUsage | None:
        """Return the current resource usage; None if it cannot be measured."""


class EnvironmentProgram(Protocol):
    """A program that runs next to the first process of an environment's container."""

    @property
    def pid(self) -> int | None:
        """Process id on this machine; None if it is not known or the program has not started."""

    async def wait(self) -> ContainerExit:
        """Wait until the program has ended; may be called repeatedly."""

    async def stop(self, *, grace: float) -> None:
        """Send the program its stop signal; after ``grace`` seconds SIGKILL to its descendants."""

    async def send_signal(self, number: int) -> None:
        """Send a signal to the program; do nothing if it has ended."""

    async def notify_resize(self) -> None:
        """Report that the size of its terminal has changed."""

    async def hang_up(self) -> None:
        """Send SIGHUP to the program's session, as when its terminal is closed."""


class EnvironmentContainer(Protocol):
    """The started container of an environment, in which other programs can be started."""

    @property
    def pid(self) -> int | None:
        """Process id on this machine of the container's first process; None if not known."""

    @property
    def programs(self) -> Sequence[EnvironmentProgram]:
        """The programs that were started in it and have not ended."""

    @property
    def warnings(self) -> Sequence[str]:
        """What this machine could not enforce or provide."""

    @property
    def port_opener(self) -> PortOpener | None:
        """Connects to its ports; None if it shares this machine's network."""

    async def start_exec(
        self, request: ExecRequest, *, stdin: int, stdout: int, stderr: int
    ) -> EnvironmentProgram:
        """Start a program with three file descriptors of this process as its streams.

        The descriptors may be closed afterwards. Raises :class:`~danlu.errors.DanluError` if the
        container has ended or the request is invalid for it.
        """

    async def wait(self) -> ContainerExit:
        """Wait until the container and every process it left are gone; may be called repeatedly."""

    async def stop(self, *, grace: float) -> None:
        """Send SIGTERM to the first process, and SIGKILL to all after ``grace`` seconds."""


class PortConnection(Protocol):
    """A connection to a port in another network. Neither side can close only its half."""

    async def send(self, data: bytes) -> None:
        """Send data; raises :class:`~danlu.errors.DanluError` if the connection is lost."""

    def receive(self) -> AsyncIterator[bytes]:
        """Yield data until the other side closes; raises :class:`~danlu.errors.DanluError`."""

    async def close(self) -> None:
        """Close it."""


class PortOpener(Protocol):
    """Connects to the ports of a container whose network is not this machine's."""

    async def open_port(self, port: int) -> PortConnection:
        """Connect to a port; raises :class:`~danlu.errors.DanluError`."""
