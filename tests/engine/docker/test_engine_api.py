"""The Engine API of a daemon that answers what these tests say."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import SocketStream
from hypothesis import given
from hypothesis import strategies as st

from danlu.engine.docker.api_exec import start_api_exec
from danlu.engine.docker.engine_api import DEFAULT_SOCKET, EngineApi, FrameParser, find_socket
from danlu.engine.types import ExecRequest
from danlu.errors import MachineError, OutsideError

pytestmark = pytest.mark.anyio

UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
REQUEST = ExecRequest(("true",))


def render_frame(stream: int, data: bytes) -> bytes:
    return struct.pack(">B3xL", stream, len(data)) + data


def render_json(value: object, status: str = "200 OK") -> bytes:
    return (
        f"HTTP/1.0 {status}\r\nContent-Type: application/json\r\n\r\n{json.dumps(value)}".encode()
    )


@asynccontextmanager
async def open_daemon(path: Path, *responses: bytes) -> AsyncIterator[EngineApi]:
    """Start a daemon that gives each connection the next response, and ends it."""
    left = list(responses)

    async def answer(connection: SocketStream) -> None:
        async with connection:
            request = b""
            while b"\r\n\r\n" not in request:
                request += await connection.receive()
            await connection.send(left.pop(0))

    listener = await anyio.create_unix_listener(path / "docker.sock")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, answer)
        yield EngineApi(str(path / "docker.sock"))
        group.cancel_scope.cancel()
    assert not left


def join(parts: list[tuple[int, bytes]]) -> dict[int, bytes]:
    joined: dict[int, bytes] = {}
    for stream, data in parts:
        joined[stream] = joined.get(stream, b"") + data
    return joined


class TestFrames:
    @given(
        st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=12),
        st.integers(1, 25),
    )
    def test_data_is_the_same_however_it_arrives(
        self, frames: list[tuple[int, bytes]], size: int
    ) -> None:
        data = b"".join(render_frame(stream, payload) for stream, payload in frames)
        parser = FrameParser()
        parts: list[tuple[int, bytes]] = []
        for start in range(0, len(data), size):
            parts += parser.parse(data[start : start + size])
        assert join(parts) == join([frame for frame in frames if frame[1]])
        assert parser.is_complete

    @given(st.lists(st.binary(max_size=200), max_size=8))
    def test_anything_else_is_data_or_one_error(self, pieces: list[bytes]) -> None:
        parser = FrameParser()
        try:
            parts = [part for piece in pieces for part in parser.parse(piece)]
        except OutsideError:
            return
        assert sum(len(data) for _, data in parts) <= sum(map(len, pieces))

    def test_a_frame_is_passed_on_before_it_is_whole(self) -> None:
        parser = FrameParser()
        assert parser.parse(struct.pack(">B3xL", 2, 0xFFFFFFFF) + b"first") == [(2, b"first")]
        assert parser.parse(b"second") == [(2, b"second")]
        assert not parser.is_complete

    def test_unknown_streams_are_refused(self) -> None:
        with pytest.raises(OutsideError, match="output of stream 3"):
            FrameParser().parse(render_frame(3, b"no such container"))


class TestRequests:
    @pytest.mark.parametrize(
        ("response", "message"),
        [
            (
                render_json({"message": "no\x1b[2J such"}, "404 Not Found"),
                r"docker: no\x1b[2J such",
            ),
            (render_json([1], "500 Internal Server Error"), "docker: HTTP status 500"),
            (b"HTTP/1.0 304 Not Modified\r\n\r\n", "docker: HTTP status 304"),
            (b"HTTP/1.0 200 OK\r\n\r\n{", "docker: its daemon sent no JSON"),
            (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "something else than its daemon"),
            (b"HTTP/1.0 200 OK\r\n", "docker: the daemon closed the connection"),
            (b"HTTP/1.0 200 OK\r\nX: " + bytes(1 << 17), "something else than its daemon"),
            (b"", "docker: the daemon closed the connection"),
        ],
    )
    async def test_what_is_no_answer_is_an_error(
        self, tmp_path: Path, response: bytes, message: str
    ) -> None:
        async with open_daemon(tmp_path, response) as api:
            with pytest.raises(OutsideError) as caught:
                await api.call("GET", "/containers/box/json")
        assert message in caught.value.message

    async def test_an_answer_may_be_empty(self, tmp_path: Path) -> None:
        async with open_daemon(tmp_path, b"HTTP/1.0 204 No Content\r\n\r\n") as api:
            assert await api.call("POST", "/containers/box/start") is None

    async def test_without_a_daemon_the_hint_says_what_to_do(self, tmp_path: Path) -> None:
        with pytest.raises(MachineError, match="No such file") as caught:
            await EngineApi(str(tmp_path / "docker.sock")).call("GET", "/info")
        assert "systemctl start docker" in caught.value.hint

    @pytest.mark.parametrize("state", [{}, {"State": {}}, {"State": {"Pid": "x"}}, []])
    async def test_an_incomplete_description_is_an_error(
        self, tmp_path: Path, state: object
    ) -> None:
        async with open_daemon(tmp_path, render_json(state)) as api:
            with pytest.raises(OutsideError, match="did not describe the container"):
                await api.read_state("box")


@asynccontextmanager
async def open_streams() -> AsyncIterator[tuple[tuple[int, int, int], Callable[[], bytes]]]:
    """Yield descriptors for a program, and how to read what it has written to both."""
    reading, writing = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        yield (null, writing, writing), lambda: os.read(reading, 1 << 16)
    finally:
        for descriptor in (reading, writing, null):
            os.close(descriptor)


async def ignore() -> None:
    """Do nothing about output that nobody reads."""


class TestPrograms:
    async def test_the_exit_code_is_asked_for_until_the_program_has_ended(
        self, tmp_path: Path
    ) -> None:
        output = UPGRADED + render_frame(1, b"out") + render_frame(2, b"err")
        runs = render_json({"Running": True, "ExitCode": None})
        ended = render_json({"Running": False, "ExitCode": 7})
        responses = (render_json({"Id": "1"}), output, runs, runs, ended)
        async with open_daemon(tmp_path, *responses) as api, open_streams() as (streams, read):
            program = await start_api_exec(api, "box", REQUEST, streams)
            assert await program.wait(ignore) == 7
            assert (await program.wait(ignore), program.returncode) == (7, 7)
            assert (read(), program.failure) == (b"outerr", "")

    @pytest.mark.parametrize(
        ("output", "message"),
        [
            (render_frame(1, b"out")[:-1], "the daemon closed the connection"),
            (b"\1\0\0", "the daemon closed the connection"),
            (b"no frames at all", "the daemon sent output of stream"),
        ],
    )
    async def test_lost_output_is_no_success(
        self, tmp_path: Path, output: bytes, message: str
    ) -> None:
        responses = (render_json({"Id": "1"}), UPGRADED + output)
        async with open_daemon(tmp_path, *responses) as api, open_streams() as (streams, _):
            program = await start_api_exec(api, "box", REQUEST, streams)
            assert await program.wait(ignore) < 0
            assert message in program.failure

    @pytest.mark.parametrize("state", [[], {}, {"Running": False, "ExitCode": None}])
    async def test_an_unknown_end_is_no_success(self, tmp_path: Path, state: object) -> None:
        responses = (render_json({"Id": "1"}), UPGRADED, render_json(state))
        async with open_daemon(tmp_path, *responses) as api, open_streams() as (streams, _):
            program = await start_api_exec(api, "box", REQUEST, streams)
            assert await program.wait(ignore) < 0
            assert "did not say how the program ended" in program.failure

    @pytest.mark.parametrize("answer", [{}, [], {"Id": "../../containers/box"}, {"Id": ""}])
    async def test_a_program_without_a_number_is_an_error(
        self, tmp_path: Path, answer: object
    ) -> None:
        async with (
            open_daemon(tmp_path, render_json(answer)) as api,
            open_streams() as (streams, _),
        ):
            with pytest.raises(OutsideError, match="did not say which program"):
                await start_api_exec(api, "box", REQUEST, streams)

    async def test_a_refused_start_is_the_daemons_message(self, tmp_path: Path) -> None:
        refused = render_json({"message": "container box is paused"}, "409 Conflict")
        responses = (render_json({"Id": "1"}), refused)
        async with open_daemon(tmp_path, *responses) as api, open_streams() as (streams, _):
            with pytest.raises(OutsideError, match="docker: container box is paused"):
                await start_api_exec(api, "box", REQUEST, streams)

    async def test_a_cancelled_waiter_is_followed_by_the_next(self, tmp_path: Path) -> None:
        release = anyio.Event()
        responses = [render_json({"Id": "1"}), UPGRADED + render_frame(1, b"one ")]

        async def answer(connection: SocketStream) -> None:
            async with connection:
                await connection.receive()
                if responses:
                    await connection.send(responses.pop(0))
                    if not responses:
                        await release.wait()
                        await connection.send(render_frame(1, b"two"))
                else:
                    await connection.send(render_json({"Running": False, "ExitCode": 0}))

        listener = await anyio.create_unix_listener(tmp_path / "docker.sock")
        async with (
            listener,
            open_streams() as (streams, read),
            anyio.create_task_group() as group,
        ):
            group.start_soon(listener.serve, answer)
            api = EngineApi(str(tmp_path / "docker.sock"))
            program = await start_api_exec(api, "box", REQUEST, streams)
            async with anyio.create_task_group() as first:
                first.start_soon(program.wait, ignore)
                assert await anyio.to_thread.run_sync(read) == b"one "
                first.cancel_scope.cancel()
            assert program.returncode is None
            release.set()
            assert await program.wait(ignore) == 0
            assert read() == b"two"
            group.cancel_scope.cancel()


class TestSocket:
    @pytest.mark.parametrize(
        ("variables", "config", "socket"),
        [
            ({}, "", DEFAULT_SOCKET),
            ({}, "{}", DEFAULT_SOCKET),
            ({}, '{"currentContext": "default"}', DEFAULT_SOCKET),
            ({}, '{"currentContext": "desktop-linux"}', ""),
            ({}, "[]", ""),
            ({}, "{", ""),
            ({"DOCKER_CONTEXT": "far"}, "", ""),
            ({"DOCKER_CONTEXT": "default"}, '{"currentContext": "far"}', DEFAULT_SOCKET),
            ({"DOCKER_HOST": "unix:///run/d.sock"}, '{"currentContext": "far"}', "/run/d.sock"),
            ({"DOCKER_HOST": "ssh://me@box"}, "", ""),
            ({"DOCKER_HOST": "tcp://127.0.0.1:2376"}, "", ""),
            ({"DOCKER_HOST": ""}, "", DEFAULT_SOCKET),
        ],
    )
    def test_it_is_that_of_dockers_command_line(
        self, tmp_path: Path, variables: dict[str, str], config: str, socket: str
    ) -> None:
        if config:
            (tmp_path / "config.json").write_text(config)
        assert find_socket({"DOCKER_CONFIG": str(tmp_path), **variables}) == socket
