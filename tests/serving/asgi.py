"""Ask an ASGI application without a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import anyio


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def ask(
    app: Any,
    method: str,
    path: str,
    body: Any = b"",
    headers: Mapping[str, str] = {},
) -> Answer:
    """Send a request; ``body`` is bytes, or a value that is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
    }
    await app(scope, receive, send)
    found = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], found, sent[1]["body"])


def get(app: Any, path: str) -> Answer:
    return anyio.run(ask, app, "GET", path)


def post(app: Any, path: str, body: Any, **headers: str) -> Answer:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return anyio.run(ask, app, "POST", path, body, named)
