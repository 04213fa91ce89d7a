"""Forward ports of the host to ports of an environment that shares the host's network."""

from __future__ import annotations

from contextlib import suppress

import anyio
from anyio import abc

from danlu.engine.environment_directory import PortForward
from danlu.errors import OutsideError

_CHUNK_SIZE = 1 << 16


async def serve_forward(
    port: PortForward, *, task_status: abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Accept connections at the host's address and copy them to the environment's port.

    Raises :class:`OutsideError` if the address is in use.
    """
    try:
        listener = await anyio.create_tcp_listener(
            local_host=port.address, local_port=port.host_port
        )
    except OSError as error:
        raise OutsideError(
            f"cannot listen on {port.address}:{port.host_port}: {error.strerror}",
            hint="choose another port with --port HOST:PORT",
        ) from error
    task_status.started()

    async def forward(client: abc.SocketStream) -> None:
        async with client:
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                async with await anyio.connect_tcp("127.0.0.1", port.port) as server:
                    await _copy_both_ways(client, server)

    async with listener:
        await listener.serve(forward)


async def _copy_both_ways(left: abc.SocketStream, right: abc.SocketStream) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(_copy_one_way, left, right)
        group.start_soon(_copy_one_way, right, left)


async def _copy_one_way(source: abc.SocketStream, target: abc.SocketStream) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            await target.send(await source.receive(_CHUNK_SIZE))
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await target.send_eof()
