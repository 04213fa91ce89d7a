"""What an engine runs: environments, and programs inside them."""

from __future__ import annotations

from collections.abc import Mapping
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
