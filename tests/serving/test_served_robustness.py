"""The running server: predictors that fail in every way, overload, hostile clients, the end."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serving.servers import RunningServer, ServerDirectory, install_packages

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

MODEL = """
from typing import Annotated
import ctypes, os, re, sys, time
import numpy as np

leaked = []


class Model:
    def load(self, directory):
        pass

    def predict(self, x: Annotated[np.ndarray, "float32", (None, 2)]) -> dict:
        kind = int(x[0, 0])
        if kind == 100:
            os._exit(9)
        if kind == 101:
            ctypes.string_at(0)
        if kind == 102:
            time.sleep(1e6)
        if kind == 103:
            re.match("(a+)+$", "a" * 60 + "b")  # holds the GIL
        if kind == 104:
            leaked.append(b"x" * (20 << 20))
        if kind == 105:
            raise ValueError("unlucky")
        if kind == 106:
            print("a long call begins", file=sys.stderr, flush=True)
            time.sleep(30)
        if kind >= 1000:
            time.sleep(0.02)
        return {"y": 2 * x}
"""
SEGFAULT, EXIT, HANG, HANG_WITH_GIL, LEAK, RAISE, LONG, SLOW = (
    *(101, 100, 102, 103, 104, 105, 106), 1000,
)  # fmt: skip


@pytest.fixture
def model(directory: ServerDirectory) -> ServerDirectory:
    directory.write(MODEL, [[1.0, 2.0], [3.0, 4.0]])
    return directory


def ask(server: RunningServer, kind: int) -> tuple[int, bytes]:
    """Send one request by a new connection; return status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=100)
    with contextlib.closing(connection):
        connection.request("POST", "/invocations", json.dumps({"x": [[kind, 0]]}))
        answer = connection.getresponse()
        return answer.status, answer.read()


def send_raw(server: RunningServer, *parts: bytes) -> bytes:
    """Send bytes; return what the server sends until it closes or has sent a whole answer."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=100) as connection:
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return f"{answer.status} ".encode() + answer.read()


def find_workers(server: RunningServer) -> list[int]:
    text = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text()
    return [int(pid) for pid in text.split()]


def read_memory(pid: int) -> int:
    """Resident memory in bytes."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_a_worker_is_replaced_and_waiting_connections_are_answered(model: ServerDirectory) -> None:
    with model.start("--timeout", "1") as server:
        assert ask(server, RAISE)[0] == 500
        assert ask(server, 1) == (200, b'{"y":[[2.0,0.0]]}')
        for kind, reason in ((EXIT, r"exit code 9"), (SEGFAULT, "signal 11")):
            with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
                ask(server, kind)
            assert ask(server, 1)[0] == 200
            server.wait_for(reason)
        status, body = ask(server, HANG)
        assert (status, b"did not answer in 1 s" in body) == (504, True)
        assert ask(server, 1)[0] == 200
        server.wait_for("exit code 70")


@pytest.mark.slow
def test_a_worker_whose_predictor_holds_the_gil_is_replaced(model: ServerDirectory) -> None:
    with model.start("--timeout", "1") as server:
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            ask(server, HANG_WITH_GIL)
        assert ask(server, 1)[0] == 200
        server.wait_for("does not react")


def test_a_worker_that_leaks_is_replaced_without_a_failed_request(model: ServerDirectory) -> None:
    with model.start("--max-memory", "200") as server:
        while not any("the worker is replaced" in line for line in server.lines):
            assert ask(server, LEAK)[0] == 200
        server.wait_for("is ready", 2)
        assert ask(server, 1)[0] == 200


def test_no_request_fails_during_sigterm(model: ServerDirectory) -> None:
    """Clients that keep connections, and others that make new ones, until they are refused."""
    results: collections.Counter[object] = collections.Counter()
    seen = threading.Semaphore(0)

    def send_requests(server: RunningServer, keep: bool) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=100)
        while True:
            try:
                connection.connect()
            except ConnectionRefusedError:
                return
            is_open = True
            while is_open:
                try:
                    connection.request("POST", "/invocations", '{"x": [[1, 2]]}')
                    answer = connection.getresponse()
                    answer.read()
                except (OSError, http.client.HTTPException) as error:
                    results[repr(error)] += 1
                    break
                results[answer.status] += 1
                seen.release()
                is_open = keep and answer.getheader("connection") != "close"
            connection.close()

    with model.start(workers=2) as server:
        threads = [
            threading.Thread(target=send_requests, args=(server, number % 2 == 0))
            for number in range(16)
        ]
        for thread in threads:
            thread.start()
        for _ in range(200):
            seen.acquire()
        server.process.terminate()
        for thread in threads:
            thread.join()
        assert server.process.wait(60) == 0
    assert set(results) == {200}


@pytest.mark.slow
def test_a_call_may_take_its_timeout_after_sigterm(model: ServerDirectory) -> None:
    answers = []
    with model.start() as server:
        thread = threading.Thread(target=lambda: answers.append(ask(server, LONG)[0]))
        thread.start()
        server.wait_for("a long call begins")
        server.process.terminate()
        thread.join()
    assert answers == [200]


@pytest.mark.slow
def test_no_call_by_grpc_is_cut_off_during_sigterm(model: ServerDirectory, tmp_path: Path) -> None:
    """Every call is answered, until the server says to each client that it ends."""
    packages = install_packages(tmp_path / "packages", "tritonclient[grpc]")
    program = Path(__file__).with_name("clients") / "grpc_until_the_end.py"
    with (
        model.start(grpc=True) as server,
        subprocess.Popen(
            [sys.executable, "-S", program, f"127.0.0.1:{server.grpc_port}"],
            env={"PYTHONPATH": str(packages), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE, text=True,
        ) as client,
    ):  # fmt: skip
        assert client.stdout is not None
        assert client.stdout.readline() == "answered\n"
        server.process.terminate()
        assert client.stdout.read().splitlines() == ["UNAVAILABLE the server ends"] * 8
        assert server.process.wait(60) == 0


def send_body(server: RunningServer, size: int, *, is_chunked: bool) -> bytes:
    head = b"POST /invocations HTTP/1.1\r\nhost: a\r\n"
    part = b" " * (1 << 20)
    if is_chunked:
        chunks = [b"100000\r\n" + part + b"\r\n"] * (size >> 20)
        return send_raw(server, head + b"transfer-encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n")
    length = f"content-length: {size}\r\n\r\n".encode()
    return send_raw(server, head + length, *[part] * (size >> 20))


@pytest.mark.parametrize("mib", [32, pytest.param(1024, marks=pytest.mark.slow)])
def test_a_large_body_is_refused_with_a_reason(model: ServerDirectory, mib: int) -> None:
    with model.start("--max-body", "4") as server:
        (worker,) = find_workers(server)
        before = read_memory(worker)
        for is_chunked in (False, True):
            answer = send_body(server, mib << 20, is_chunked=is_chunked)
            assert answer == b'413 {"error":"the body has more than 4194304 bytes"}'
        assert read_memory(worker) - before < 24 << 20
        assert ask(server, 1)[0] == 200


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ([b"GET / HTTP/1.1\r\nx: ", *[b"a" * 100_000] * 100], b"400 The head of the request"),
        ([b"GET /", *[b"a" * 100_000] * 100], b"400 The head of the request"),
        ([b"GET / HTTP/1.1\r\n", *[b"a: b\r\n" * 20_000] * 100], b"400 The head of the request"),
        ([b"junk\r\n\r\n"], b"400 Invalid HTTP request"),
        ([b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n"], b"400 Invalid HTTP request"),
        ([b"GET http://[ HTTP/1.1\r\nhost: a\r\n\r\n"], b"400 Invalid HTTP request"),
        ([b"GET /%ff%00 HTTP/1.1\r\nhost: a\r\n\r\n"], b"404 "),
        ([b"POST /invocations HTTP/1.1\r\ncontent-length: 15\r\nconnection: Upgrade, HTTP2-Settings"
          b"\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n", b'{"x": [[1, 2]]}'],
         b'200 {"y":[[2.0,4.0]]}'),
    ],
    ids=["header", "path", "headers", "junk", "length", "address", "characters", "java"],
)  # fmt: skip
def test_requests_at_the_edge(edge: RunningServer, parts: list[bytes], status: bytes) -> None:
    assert send_raw(edge, *parts).startswith(status)
    assert ask(edge, 1)[0] == 200


@pytest.fixture(scope="module")
def edge(
    server_packages: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    directory = ServerDirectory(server_packages, tmp_path_factory.mktemp("edge") / "predictor")
    directory.write(MODEL, [[1.0, 2.0], [3.0, 4.0]])
    with directory.start() as server:
        yield server


def test_clients_that_send_slowly_are_closed(model: ServerDirectory) -> None:
    head = b"POST /invocations HTTP/1.1\r\nhost: a\r\n"
    with model.start("--keep-alive", "1") as server, contextlib.ExitStack() as stack:
        slow = []
        for start in (b"", b"GET", head, head + b"content-length: 9\r\n\r\n{"):
            for _ in range(20):
                connection = socket.create_connection(("127.0.0.1", server.port), timeout=100)
                slow.append(stack.enter_context(connection))
                connection.sendall(start)
        assert ask(server, 1)[0] == 200
        for connection in slow:
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""


async def send_for(server: RunningServer, seconds: float) -> collections.Counter[int]:
    """Send as many requests as the server takes by 400 connections."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    body = json.dumps({"x": [[SLOW, 0]]}).encode()
    request = (
        b"POST /invocations HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )
    statuses: collections.Counter[int] = collections.Counter()

    async def send_requests() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while loop.time() < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
            status = int(head.split()[1])
            statuses[status] += 1
            assert (status == 503) == (b"retry-after: " in head)
        writer.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(400):
            group.create_task(send_requests())
    return statuses


@pytest.mark.slow
def test_overload_for_a_minute(model: ServerDirectory) -> None:
    """Some requests are answered, the others refused at once; memory stays the same."""
    with model.start("--max-waiting", "64") as server:
        (worker,) = find_workers(server)
        asyncio.run(send_for(server, 5))
        before = read_memory(worker)
        statuses = asyncio.run(send_for(server, 60))
        assert set(statuses) == {200, 503}
        assert read_memory(worker) - before < 16 << 20
        assert ask(server, 1)[0] == 200


@pytest.mark.slow
def test_schemathesis_finds_nothing(edge: RunningServer, tmp_path: Path) -> None:
    packages = install_packages(tmp_path / "packages", "schemathesis")
    command = [sys.executable, "-S", "-m", "schemathesis.cli", "run", "--max-examples", "200"]
    result = subprocess.run(
        # A schema cannot say that data have the shape.
        [*command, "--seed", "1", "--exclude-checks", "positive_data_acceptance",
         f"http://127.0.0.1:{edge.port}/openapi.json"],
        env={"PYTHONPATH": str(packages), "PATH": "/usr/bin:/bin"}, cwd=tmp_path,
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout
