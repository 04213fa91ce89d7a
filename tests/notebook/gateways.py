"""A Jupyter gateway as its clients see it: kernels by REST, their messages by websocket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

import aiohttp

from tests.ports import free_port

__all__ = ["GatewayKernel", "free_port", "run_server", "start_kernel"]

#: Seconds a server or a kernel may take to start on a machine that is busy.
_START = 60.0


@contextmanager
def run_server(
    command: Sequence[str | Path], url: str, *, place: Path, environment: Mapping[str, str]
) -> Iterator[None]:
    """The server ``command``, which answers at ``url`` in the block and has ended after it."""
    with (place / "gateway.log").open("w+") as log:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=place,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            _wait_for_server(process, f"{url}/api/kernelspecs", place / "gateway.log")
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(_START)


def _wait_for_server(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    limit = time.monotonic() + _START
    while time.monotonic() < limit and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except URLError:
            time.sleep(0.1)
    raise AssertionError(f"no answer of the server:\n{log.read_text()}")


@dataclass(frozen=True)
class GatewayKernel:
    """A kernel behind a gateway: its address there, and the socket of its messages."""

    http: aiohttp.ClientSession
    address: str
    messages: aiohttp.ClientWebSocketResponse

    async def begin(self, code: str) -> str:
        """Send a cell; gives the identity of its message."""
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "username": "",
            "session": "test",
            "version": "5.3",
        }
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        await self.messages.send_json(
            {
                "channel": "shell",
                "header": header,
                "parent_header": {},
                "metadata": {},
                "content": content,
            }
        )
        return header["msg_id"]

    async def messages_of(self, cell: str) -> AsyncIterator[dict[str, Any]]:
        """The messages that a cell causes, to its reply and the end of its output."""
        expected = {"execute_reply", "idle"}
        while expected:
            message = json.loads((await self.messages.receive(_START)).data)
            if message["parent_header"].get("msg_id") != cell:
                continue
            yield message
            expected.discard(message["msg_type"])
            expected.discard(message["content"].get("execution_state", ""))

    async def run(self, code: str) -> tuple[str, str]:
        """Run a cell; return its status and its output."""
        status, texts = "", []
        async for message in self.messages_of(await self.begin(code)):
            if message["msg_type"] == "stream":
                texts.append(message["content"]["text"])
            if message["msg_type"] == "execute_reply":
                status = message["content"].get("ename", message["content"]["status"])
        return status, "".join(texts).strip()

    async def interrupt(self) -> None:
        """Interrupt the kernel, as a front end's stop button does."""
        async with self.http.post(f"{self.address}/interrupt") as answer:
            answer.raise_for_status()


@asynccontextmanager
async def start_kernel(
    url: str, name: str, environment: Mapping[str, str], *, token: str = ""
) -> AsyncIterator[GatewayKernel]:
    """Start the kernel ``name`` of the gateway at ``url``, and shut it down afterwards."""
    asked = {"name": name, "env": dict(environment)}
    limit = aiohttp.ClientTimeout(total=_START)
    headers = {"Authorization": f"token {token}"} if token else {}
    async with aiohttp.ClientSession(timeout=limit, headers=headers) as http:
        async with http.post(f"{url}/api/kernels", json=asked) as answer:
            assert answer.status == 201, await answer.text()
            address = f"{url}/api/kernels/{(await answer.json())['id']}"
        try:
            async with http.ws_connect(f"{address}/channels") as messages:
                yield GatewayKernel(http, address, messages)
        finally:
            async with http.delete(address) as answer:
                assert answer.status == 204, await answer.text()
