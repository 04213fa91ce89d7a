"""Programs and ports of pods over WebSockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from danlu.errors import OutsideError
from danlu.kube.errors import ConnectionLost, NotFound
from danlu.kube.pod_streams import Channel, PodExec, open_pod_exec, open_pod_port
from danlu.kube.transport import Transport
from tests.fakes.pod_streams import PodStreamsServer, serve_pod_streams

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server() -> AsyncIterator[PodStreamsServer]:
    async with serve_pod_streams() as server:
        yield server


@pytest.fixture
async def transport(server: PodStreamsServer) -> AsyncIterator[Transport]:
    async with Transport(server.access) as transport:
        yield transport


async def run(transport: Transport, *command: str, data: bytes = b"") -> tuple[PodExec, bytes]:
    program = await open_pod_exec(transport, "team", "digits-0", command, container="main")
    await program.send_input(data)
    await program.end_input()
    output = b"".join([part async for _, part in program.read_output()])
    await program.close()
    return program, output


async def test_input_and_output_arrive_completely(transport: Transport) -> None:
    data = bytes(range(256)) * 4096
    program, output = await run(transport, "cat", data=data)
    assert (program.exit_code, output == data) == (0, True)


async def test_streams_are_separate_and_arguments_unchanged(
    transport: Transport, server: PodStreamsServer
) -> None:
    words = ("sh", "-c", 'echo "$1"; echo err >&2', "a b", "ü & = ;")
    program = await open_pod_exec(transport, "team", "digits-0", words, container="main")
    results = {Channel.STDOUT: b"", Channel.STDERR: b""}
    async for channel, data in program.read_output():
        results[channel] += data
    await program.close()
    assert results == {Channel.STDOUT: "ü & = ;\n".encode(), Channel.STDERR: b"err\n"}
    assert server.queries[0]["command"] == list(words)
    assert server.queries[0]["container"] == ["main"]
    assert "tty" not in server.queries[0]


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("true", 0)])
async def test_the_exit_code_is_the_program_s(transport: Transport, script: str, code: int) -> None:
    program, _ = await run(transport, "sh", "-c", script)
    assert program.exit_code == code


async def test_a_missing_pod_is_not_found(transport: Transport, server: PodStreamsServer) -> None:
    server.refusal = 404
    with pytest.raises(NotFound):
        await run(transport, "true")


async def test_a_refusal_names_the_permission(
    transport: Transport, server: PodStreamsServer
) -> None:
    server.refusal = 403
    with pytest.raises(OutsideError) as error:
        await run(transport, "true")
    assert "pods/exec" in error.value.hint


async def test_an_old_server_is_named(transport: Transport, server: PodStreamsServer) -> None:
    server.protocols = ("v4.channel.k8s.io",)
    with pytest.raises(OutsideError, match="too old") as error:
        await run(transport, "true")
    assert "1.30" in error.value.hint


async def test_a_lost_connection_is_not_an_exit(transport: Transport) -> None:
    program = await open_pod_exec(
        transport, "team", "digits-0", ("sh", "-c", "echo; read x"), container="main"
    )

    async def close_after_output() -> None:
        async for _ in program.read_output():
            await program.close()

    with pytest.raises(ConnectionLost):
        await close_after_output()
    with pytest.raises(OutsideError, match="has not ended"):
        _ = program.exit_code


async def test_a_port_is_reached(transport: Transport) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"got " + await reader.readline())
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        connection = await open_pod_port(transport, "team", "digits-0", port)
        await connection.send(b"hello\n")
        assert b"".join([data async for data in connection.receive()]) == b"got hello\n"
        await connection.close()


async def test_a_port_without_a_listener_is_an_error(transport: Transport) -> None:
    listener = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    connection = await open_pod_port(transport, "team", "digits-0", port)
    with pytest.raises(OutsideError, match=f"connect to port {port} of pod digits-0: error"):
        _ = [data async for data in connection.receive()]
    await connection.close()
