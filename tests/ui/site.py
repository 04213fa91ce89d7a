"""A site of a danlu home, and a client with its cookie."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from danlu.engine.settings import load_settings
from danlu.jobs.types import JobBackend
from danlu.ui.job_catalog import JobCatalog
from danlu.ui.log_source import LogSources
from danlu.ui.security import AccessPolicy
from danlu.ui.server import serve_site
from danlu.ui.types import Site
from danlu.util.paths import Paths

TOKEN = "a token of this test"


@dataclass
class ServedEvent:
    """A server-sent event."""

    name: str
    data: Any
    id: str = ""


@dataclass
class SiteClient:
    """Requests as a browser with the session's cookie sends them."""

    port: int
    session: aiohttp.ClientSession
    cookie: dict[str, str] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        body: str = "",
    ) -> tuple[int, str]:
        """The status and the text of a response."""
        sent = {"Origin": self.origin} if method == "POST" else {}
        sent |= self.cookie | (headers or {})
        async with self.session.request(
            method, f"{self.origin}{path}", headers=sent, data=body or None
        ) as response:
            return response.status, await response.text()

    async def sign_in(self, token: str = TOKEN) -> int:
        """Exchange the token for the cookie; the status."""
        async with self.session.post(
            f"{self.origin}/-/session", data=token, headers={"Origin": self.origin}
        ) as response:
            cookies = [f"{name}={value.value}" for name, value in response.cookies.items()]
            self.cookie = {"Cookie": "; ".join(cookies)}
            return response.status

    async def events(self, path: str, *, last: str = "") -> AsyncGenerator[ServedEvent, None]:
        """The events of a stream until it ends."""
        headers = self.cookie | ({"Last-Event-ID": last} if last else {})
        async with self.session.get(f"{self.origin}{path}", headers=headers) as response:
            assert response.status == 200, await response.text()
            words: dict[str, str] = {}
            async for raw in response.content:
                line = raw.decode().rstrip("\n")
                if line:
                    name, _, value = line.partition(": ")
                    words[name] = value
                elif "event" in words:
                    yield ServedEvent(
                        words["event"], json.loads(words["data"]), words.get("id", "")
                    )
                    words = {}


def make_site(home: Path, backend: JobBackend, *, where: str = "local") -> Site:
    settings = load_settings(Paths.of({"DANLU_HOME": str(home)}))
    return Site(settings, where, backend, JobCatalog(backend), LogSources(backend))


@asynccontextmanager
async def serve(
    site: Site, *, port: int = 0, signed_in: bool = True, token: str = TOKEN
) -> AsyncIterator[SiteClient]:
    """Serve a site, and yield a client."""
    policy = AccessPolicy(token)
    async with (
        serve_site(site, policy, host="127.0.0.1", port=port) as actual,
        aiohttp.ClientSession(
            read_bufsize=1 << 22, timeout=aiohttp.ClientTimeout(total=60)
        ) as session,
    ):
        client = SiteClient(actual, session)
        if signed_in:
            assert await client.sign_in(token) == 204
        yield client


async def wait_for_part(client: SiteClient, path: str, part: str, text: str) -> str:
    """Wait until a part of an open page contains ``text``; the part's markup."""
    async with aclosing(client.events(f"/-/live{path}")) as events:
        async for event in events:
            html = event.data.get(part, "")
            if event.name == "parts" and text in html:
                return str(html)
    raise AssertionError("the stream has ended")


async def act_on(client: SiteClient, name: str, action: str) -> tuple[int, str]:
    """Press a button: the status, and what the page says."""
    status, text = await client.ask(f"/-/jobs/{name}/{action}", method="POST")
    return status, json.loads(text)["message"]


async def read_lines(client: SiteClient, name: str, *, last: str = "") -> list[list[Any]]:
    """All lines that the stream of a finished job sends."""
    lines: list[list[Any]] = []
    async with aclosing(client.events(f"/-/logs/{name}/stream", last=last)) as events:
        async for event in events:
            if event.name == "end":
                break
            lines += event.data["lines"]
    return lines
