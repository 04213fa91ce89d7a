"""Programs in an environment of this machine, for callers with an event loop."""

from __future__ import annotations

import anyio

from danlu.engine.environment_control import encode_exec
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.exec_connection import ExecConnection
from danlu.engine.types import ExecProcess, ExecRequest


class SupervisedExecClient:
    """Starts programs in an environment of this machine, through its supervisor."""

    def __init__(self, environment: EnvironmentDirectory) -> None:
        self._environment = environment

    async def start_exec(
        self, request: ExecRequest, *, stdin: int, stdout: int, stderr: int
    ) -> ExecProcess:
        """See :class:`~danlu.engine.types.ExecClient`."""
        streams = stdin, stdout, stderr
        directory = self._environment.directory
        connection = ExecConnection.open(directory, encode_exec(request), streams)
        return _SupervisedExecProcess(connection)


class _SupervisedExecProcess:
    def __init__(self, connection: ExecConnection) -> None:
        self._connection = connection
        self._code: int | None = None

    async def wait(self) -> int:
        while self._code is None:
            await anyio.wait_readable(self._connection)
            self._code = self._connection.read_exit()
        return self._code

    async def send_signal(self, number: int) -> None:
        self._connection.send_signal(number)

    async def notify_resize(self) -> None:
        self._connection.notify_resize()

    async def close(self) -> None:
        self._connection.close()
