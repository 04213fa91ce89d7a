"""Forward ports of the host to ports of an environment."""

from __future__ import annotations

import logging
from contextlib import suppress

import anyio
from anyio import abc

from danlu.engine.environment_directory import PortForward
from danlu.engine.types import PortConnection, PortOpener
from danlu.errors import DanluError, OutsideError

_CHUNK_SIZE = 1 << 16
_ANSWER_SECONDS = 30.0
_DISCONNECTED = (
    OSError,
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
)

logger = logging.getLogger(__name__)


async def serve_forward(
    port: PortForward,
    opener: PortOpener | None = None,
    *,
    task_status: abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Accept connections at the host's address and copy them to the environment's port.

    Without an ``opener`` the environment shares the host's network. Raises :class:`OutsideError`
    if the address is in use.
    """
    try:
        listener = await anyio.create_tcp_listener(
            local_host=port.address, local_port=port.host_port or port.port
        )
    except OSError as error:
        raise OutsideError(
            f"cannot listen on {port.address}:{port.host_port}: {error.strerror}",
            hint="choose another port with --port HOST:PORT",
        ) from error
    task_status.started()

    async def forward(client: abc.SocketStream) -> None:
        async with client:
            if opener is not None:
                await relay_port(client, opener, port.port)
                return
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                async with await anyio.connect_tcp("127.0.0.1", port.port) as server:
                    await _copy_both_ways(client, server)

    async with listener:
        await listener.serve(forward)


async def relay_port(client: abc.ByteStream, opener: PortOpener, port: int) -> None:
    """Copy between a connection and a port that only ``opener`` reaches, until either ends."""
    try:
        remote = await opener.open_port(port)
    except DanluError as error:
        logger.warning("port %s: %s", port, error)
        return
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_send_to_remote, client, remote, group.cancel_scope)
            with suppress(*_DISCONNECTED):
                try:
                    async for data in remote.receive():
                        await client.send(data)
                except DanluError as error:
                    logger.warning("%s", error)
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await remote.close()


async def _send_to_remote(
    client: abc.ByteStream, remote: PortConnection, scope: anyio.CancelScope
) -> None:
    with suppress(*_DISCONNECTED, DanluError):
        while True:
            await remote.send(await client.receive(_CHUNK_SIZE))
    # The protocol cannot close one half. A client that has closed its half waits for the answer.
    scope.deadline = anyio.current_time() + _ANSWER_SECONDS


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
