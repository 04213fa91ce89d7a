"""Requests of others over HTTPS: what is handed on, what is refused, what is not told."""

from __future__ import annotations

import json
import ssl
from typing import Any

import aiohttp
import pytest

from danlu.errors import MachineError, TemporaryError
from danlu.kube.receiving import Received, Reply, serve_requests
from danlu.util.certificate import public_part, self_signed

pytestmark = pytest.mark.anyio


async def certificate() -> bytes:
    made = await self_signed(["IP:127.0.0.1"], days=1)
    if made is None:
        pytest.skip("no openssl here")
    return made


async def ask(pem: bytes, port: int, *, body: bytes = b"", **headers: str) -> tuple[int, Any]:
    tls = ssl.create_default_context(cadata=public_part(pem).decode())
    url = f"https://127.0.0.1:{port}/some/where?x=y"
    async with (
        aiohttp.ClientSession() as session,
        session.put(url, data=body, headers=headers, ssl=tls) as answer,
    ):
        return answer.status, json.loads(await answer.read())


async def test_a_request_is_handed_on_with_its_token() -> None:
    seen: list[Received] = []

    async def handle(request: Received) -> Reply:
        seen.append(request)
        return Reply(201, b'{"a": 1}')

    pem = await certificate()
    async with serve_requests("127.0.0.1:0", handle, certificate=pem, most=10) as port:
        assert await ask(pem, port, body=b"0123456789", Authorization="bearer t0k") == (
            201,
            {"a": 1},
        )
        await ask(pem, port, Authorization="Basic t0k")
    assert seen[0] == Received("PUT", "/some/where", b"0123456789", "t0k")
    assert seen[1].bearer == ""
    assert "t0k" not in repr(seen)


async def test_a_body_that_is_too_large_is_refused_unread() -> None:
    async def handle(request: Received) -> Reply:
        raise AssertionError

    pem = await certificate()
    async with serve_requests(
        "127.0.0.1:0", handle, certificate=pem, most=10, too_large="write less"
    ) as port:
        code, status = await ask(pem, port, body=b"x" * 11)
    assert (code, status["code"], status["message"]) == (413, 413, "write less")


@pytest.mark.parametrize(
    ("error", "code"), [(TemporaryError("secret"), 503), (ValueError("secret"), 500)]
)
async def test_what_goes_wrong_inside_is_not_told(error: Exception, code: int) -> None:
    async def handle(request: Received) -> Reply:
        raise error

    pem = await certificate()
    async with serve_requests("127.0.0.1:0", handle, certificate=pem, most=10) as port:
        said = await ask(pem, port)
    assert said[0] == code
    assert "secret" not in json.dumps(said[1])


async def test_an_address_that_is_not_free_is_told() -> None:
    async def handle(request: Received) -> Reply:
        return Reply(200)

    pem = await certificate()
    async with serve_requests("127.0.0.1:0", handle, certificate=pem, most=1) as port:
        with pytest.raises(MachineError, match="cannot listen"):
            async with serve_requests(f"127.0.0.1:{port}", handle, certificate=pem, most=1):
                pass
