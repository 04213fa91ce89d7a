"""The HTTPS server: requests that reach the handler, rejected ones, and undisclosed errors."""

from __future__ import annotations

import json
import ssl
from typing import Any

import aiohttp
import pytest

from danlu.errors import MachineError, TemporaryError
from danlu.kube.http import HttpRequest, HttpResponse, serve_https
from danlu.util.certificate import create_certificate, extract_certificate
from tests.programs import lacking

pytestmark = pytest.mark.anyio


async def certificate() -> bytes:
    result = await create_certificate(["IP:127.0.0.1"], days=1)
    if result is None:
        pytest.skip(lacking("openssl"))
    return result


async def ask(pem: bytes, port: int, *, body: bytes = b"", **headers: str) -> tuple[int, Any]:
    tls = ssl.create_default_context(cadata=extract_certificate(pem).decode())
    url = f"https://127.0.0.1:{port}/some/where?x=y"
    async with (
        aiohttp.ClientSession() as session,
        session.put(url, data=body, headers=headers, ssl=tls) as answer,
    ):
        return answer.status, json.loads(await answer.read())


async def test_a_request_is_handed_on_with_its_token() -> None:
    seen: list[HttpRequest] = []

    async def handle(request: HttpRequest) -> HttpResponse:
        seen.append(request)
        return HttpResponse(201, b'{"a": 1}')

    pem = await certificate()
    async with serve_https("127.0.0.1:0", handle, certificate=pem, max_bytes=10) as port:
        assert await ask(pem, port, body=b"0123456789", Authorization="bearer t0k") == (
            201,
            {"a": 1},
        )
        await ask(pem, port, Authorization="Basic t0k")
    assert seen[0] == HttpRequest("PUT", "/some/where", b"0123456789", "t0k")
    assert seen[1].bearer == ""
    assert "t0k" not in repr(seen)


async def test_a_body_that_is_too_large_is_refused_unread() -> None:
    async def handle(request: HttpRequest) -> HttpResponse:
        raise AssertionError

    pem = await certificate()
    async with serve_https(
        "127.0.0.1:0", handle, certificate=pem, max_bytes=10, too_large="write less"
    ) as port:
        code, status = await ask(pem, port, body=b"x" * 11)
    assert (code, status["code"], status["message"]) == (413, 413, "write less")


@pytest.mark.parametrize(
    ("error", "code"), [(TemporaryError("secret"), 503), (ValueError("secret"), 500)]
)
async def test_internal_errors_are_not_sent_to_clients(error: Exception, code: int) -> None:
    async def handle(request: HttpRequest) -> HttpResponse:
        raise error

    pem = await certificate()
    async with serve_https("127.0.0.1:0", handle, certificate=pem, max_bytes=10) as port:
        output = await ask(pem, port)
    assert output[0] == code
    assert "secret" not in json.dumps(output[1])


async def test_an_address_in_use_is_an_error() -> None:
    async def handle(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200)

    pem = await certificate()
    async with serve_https("127.0.0.1:0", handle, certificate=pem, max_bytes=1) as port:
        with pytest.raises(MachineError, match="cannot listen"):
            async with serve_https(f"127.0.0.1:{port}", handle, certificate=pem, max_bytes=1):
                pass
