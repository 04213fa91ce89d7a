"""The control socket of a supervisor."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel

from danlu.engine.control_socket import ControlConnection, serve_control_socket
from danlu.engine.supervisor_directory import SupervisorResponse


@contextmanager
def allow_no_more_files() -> Iterator[None]:
    """Let this process open no more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_supervisor_with_too_many_open_files_lets_clients_wait(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"

    async def answer(connection: ControlConnection) -> SupervisorResponse:
        return SupervisorResponse(code=len(connection.request))

    async def run() -> bytes:
        async with anyio.create_task_group() as group:
            await group.start(serve_control_socket, path, answer)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
                with allow_no_more_files():
                    client.connect(str(path))
                    client.send(b"hello\n")
                    for _ in range(10):  # iterations of the event loop
                        await anyio.lowlevel.checkpoint()
                with anyio.fail_after(60):
                    await anyio.wait_readable(client)
                response = client.recv(100)
            group.cancel_scope.cancel()
        return response

    assert anyio.run(run) == b'{"code":5}\n'
