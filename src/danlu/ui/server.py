"""The server of the user interface: checks, pages, live updates, logs and actions over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

from aiohttp import web

from danlu.errors import DanluError, MachineError, UsageError
from danlu.jobs.first_failure import find_failure_line
from danlu.jobs.local.log_index import Cursor, MergedLogIndex
from danlu.jobs.report import decode_log_line
from danlu.jobs.types import LogLine
from danlu.ui.actions import run_action
from danlu.ui.html import Html, clean_text
from danlu.ui.layout import digest_parts, render_error, render_page, render_sign_in
from danlu.ui.log_source import LogBatch
from danlu.ui.pages import PAGES
from danlu.ui.security import (
    SECURITY_HEADERS,
    AccessPolicy,
    find_peer_user,
    is_foreign_user,
)
from danlu.ui.types import Page, PageRequest, Site

_log = logging.getLogger(__name__)
_STATIC = Path(__file__).parent / "static"
_STATIC_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
#: Seconds between two looks for changes, and between two signs of life on a silent stream.
_LIVE_SECONDS, _HEARTBEAT_SECONDS = 0.25, 15.0
_MAX_WINDOW_LINES = 2000
#: Parameters of the stream of a page, which are not the page's own.
_STREAM_PARAMETERS = ("seen", "log", "from")
_MAX_BODY_BYTES = 1 << 16
#: A cursor has the number of a line of each replica.
_MAX_CURSOR_BYTES = 1 << 18

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serve_site(
    site: Site,
    policy: AccessPolicy,
    *,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    pages: Sequence[Page] = PAGES,
) -> AsyncIterator[int]:
    """Serve the pages of a site; yield the port.

    Raises :class:`MachineError` if the address is in use.
    """
    server = _UiServer(site, policy, pages)
    runner = web.AppRunner(
        server.app,
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=0.5,
        max_field_size=_MAX_CURSOR_BYTES,
    )
    await runner.setup()
    try:
        listener = web.TCPSite(runner, host, port, ssl_context=tls)
        try:
            await listener.start()
        except OSError as error:
            raise MachineError(
                f"cannot listen on {host}:{port}: {error.strerror}",
                hint="choose another --port, or none for a free one",
            ) from error
        server.port = runner.addresses[0][1]
        yield server.port
    finally:
        server.close_streams()
        await runner.cleanup()
        site.logs.close()


class _UiServer:
    def __init__(self, site: Site, policy: AccessPolicy, pages: Sequence[Page]) -> None:
        self.port = 0
        self._site = site
        self._policy = policy
        self._pages = pages
        self._streams: set[asyncio.Task[object]] = set()
        #: Whether the peer of a connection is another user.
        self._peers: WeakKeyDictionary[asyncio.BaseTransport, bool] = WeakKeyDictionary()
        self.app = web.Application(
            middlewares=[self._check_request], client_max_size=_MAX_BODY_BYTES
        )
        router = self.app.router
        router.add_get("/static/{name}", _send_static)
        router.add_post("/-/session", self._open_session)
        router.add_get("/-/logs/{name}/lines", self._send_lines)
        router.add_get("/-/logs/{name}/find", self._find_line)
        router.add_get("/-/logs/{name}/failure", self._find_failure)
        router.add_get("/-/logs/{name}/stream", self._stream_lines)
        router.add_post("/-/{kind}/{name}/{action}", self._run_action)
        for page in pages:
            router.add_get(page.path, self._page_handler(page))
            router.add_get(f"/-/live{page.path}", self._live_handler(page))

    # -- checks -------------------------------------------------------------------------------

    @web.middleware
    async def _check_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        refusal = self._find_refusal(request)
        if refusal is not None:
            return refusal
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = _text_response(error.status, error.reason)
        except DanluError as error:
            response = _error_response(error)
        if not response.prepared:
            for name, value in SECURITY_HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    def _find_refusal(self, request: web.Request) -> web.Response | None:
        """Return the response to a request that is not allowed; None for others."""
        policy = self._policy
        if not policy.accepts_host(request.headers.get("Host", "")):
            return _text_response(421, "this is not an address of danlu ui")
        changes = request.method not in ("GET", "HEAD")
        if not policy.accepts_origin(request.headers, changes=changes):
            return _text_response(403, "requests of other pages are refused")
        if self._is_foreign_peer(request):
            return _text_response(403, "this page belongs to another user of the machine")
        if request.path.startswith("/static/") or request.path == "/-/session":
            return None
        if policy.accepts_session(request.cookies.get(self._cookie_name, "")):
            return None
        if request.path.startswith("/-/"):
            return _text_response(401, "open the address that danlu ui printed")
        return _html_response(render_sign_in(), status=401)

    def _is_foreign_peer(self, request: web.Request) -> bool:
        transport = request.transport
        if transport is None or self._policy.host:
            return False
        if transport not in self._peers:
            user = find_peer_user(transport.get_extra_info("socket"))
            self._peers[transport] = is_foreign_user(user)
        return self._peers[transport]

    @property
    def _cookie_name(self) -> str:
        # Browsers send the cookies of a host to all of its ports.
        return f"danlu-ui-{self.port}"

    async def _open_session(self, request: web.Request) -> web.Response:
        if not self._policy.accepts_token(await request.text()):
            return _text_response(403, "wrong token: use the address that danlu ui printed last")
        response = web.Response(status=204)
        response.set_cookie(
            self._cookie_name,
            self._policy.session,
            httponly=True,
            samesite="Strict",
            secure=bool(self._policy.host),
            path="/",
        )
        return response

    # -- pages --------------------------------------------------------------------------------

    def _page_handler(self, page: Page) -> Handler:
        async def send_page(request: web.Request) -> web.Response:
            status = 200
            try:
                content = await page.load(self._site, _read_page_request(request))
            except DanluError as error:
                status, content = 404, render_error(error.message, error.hint)
            page_html = render_page(self._site, self._pages, request.path, content)
            return _html_response(page_html, status=status)

        return send_page

    def _live_handler(self, page: Page) -> Handler:
        """Return the handler of a page's only stream; a browser opens few connections at once.

        With the name of a job as ``log`` it also has the lines of its log.
        """

        async def stream_page(request: web.Request) -> web.StreamResponse:
            name = request.query.get("log", "")

            async def send_both(stream: _EventStream) -> None:
                tasks = [asyncio.create_task(self._send_parts(page, request, stream))]
                if name:
                    tasks.append(asyncio.create_task(self._send_log(name, request, stream)))
                try:
                    await asyncio.gather(*tasks)
                finally:
                    for task in tasks:
                        task.cancel()
                await stream.send("final", {})

            return await self._run_stream(request, send_both)

        return stream_page

    async def _send_parts(self, page: Page, request: web.Request, stream: _EventStream) -> None:
        """Send the parts of a page that change, until it is final."""
        wanted = _read_page_request(request)
        stamp: object = None
        shown: Mapping[str, Html] | None = None
        while True:
            latest = await page.read_stamp(self._site, wanted)
            if latest != stamp or shown is None:
                stamp = latest
                content = await page.load(self._site, wanted)
                parts = content.parts
                if shown is None and digest_parts(parts) == request.query.get("seen"):
                    shown = parts  # it is what the browser has just loaded
                before = shown or {}
                changed = {name: html for name, html in parts.items() if before.get(name) != html}
                shown = parts
                if changed:
                    await stream.send("parts", changed)
                if content.is_final:
                    return
            await asyncio.sleep(_LIVE_SECONDS)

    async def _send_log(self, name: str, request: web.Request, stream: _EventStream) -> None:
        """Send the lines of a job's log until it has ended."""
        last = request.headers.get("Last-Event-ID") or request.query.get("from", "")
        job, cursor = _decode_position(last) if last else ("", None)
        followed = self._site.logs.follow(name, _read_replicas(request), job, cursor)
        try:
            async with aclosing(followed) as batches:
                async for batch in batches:
                    await stream.send("lines", _render_batch(batch), _encode_position(batch))
        except DanluError as error:
            await stream.send("log-failure", _describe_error(error))
        await stream.send("end", {})

    async def _run_stream(
        self, request: web.Request, produce: Callable[[_EventStream], Awaitable[None]]
    ) -> web.StreamResponse:
        """Send events until ``produce`` ends, the client disconnects or the server stops."""
        response = web.StreamResponse(headers={**SECURITY_HEADERS, "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        stream = _EventStream(response)
        await stream.open()
        task = asyncio.current_task()
        assert task is not None
        self._streams.add(task)
        beating = asyncio.create_task(_keep_alive(stream))
        try:
            await produce(stream)
        except (ConnectionError, asyncio.CancelledError):
            pass
        except DanluError as error:
            with suppress(ConnectionError):
                retry = not isinstance(error, UsageError)
                await stream.send("failure", {**_describe_error(error), "retry": retry})
        finally:
            beating.cancel()
            self._streams.discard(task)
        return response

    def close_streams(self) -> None:
        """End the streams of all open pages, which reconnect by themselves."""
        for task in list(self._streams):
            task.cancel()

    # -- logs ---------------------------------------------------------------------------------

    async def _open_logs(self, request: web.Request) -> MergedLogIndex:
        name = request.match_info["name"]
        return await self._site.logs.open_index(name, _read_replicas(request))

    async def _send_lines(self, request: web.Request) -> web.Response:
        first, count = _read_number(request, "first"), _read_number(request, "count")
        batch = await self._site.logs.read_window(
            request.match_info["name"],
            _read_replicas(request),
            first,
            min(count, _MAX_WINDOW_LINES),
        )
        return _json_response(_render_batch(batch))

    async def _find_line(self, request: web.Request) -> web.Response:
        text, start = request.query.get("text", ""), _read_number(request, "first")
        with await self._open_logs(request) as index:
            found = await asyncio.to_thread(index.find_text, text, start) if text else None
            if found is None and text:  # go on at the top
                found = await asyncio.to_thread(index.find_text, text, 0)
        return _json_response({"index": found})

    async def _find_failure(self, request: web.Request) -> web.Response:
        view = await self._site.backend.view(request.match_info["name"])
        line = await find_failure_line(self._site.backend, view)
        if line is None:
            return _json_response({"index": None})
        with await self._open_logs(request) as index:
            return _json_response({"index": index.find_index(line.replica, line.number)})

    async def _stream_lines(self, request: web.Request) -> web.StreamResponse:
        return await self._run_stream(
            request, partial(self._send_log, request.match_info["name"], request)
        )

    # -- actions ------------------------------------------------------------------------------

    async def _run_action(self, request: web.Request) -> web.Response:
        kind, name, action = (request.match_info[key] for key in ("kind", "name", "action"))
        # It goes on if the page is closed meanwhile.
        message = await asyncio.shield(run_action(self._site, kind, name, action))
        return _json_response({"message": message})


class _EventStream:
    """Writes server-sent events (HTML Living Standard, 9.2)."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response

    async def open(self) -> None:
        """Say after how long to reconnect."""
        await self._write_text("retry: 500\n\n")

    async def send(self, event: str, data: object, id: str = "") -> None:
        head = f"id: {id}\n" if id else ""
        await self._write_text(f"{head}event: {event}\ndata: {json.dumps(data)}\n\n")

    async def keep_alive(self) -> None:
        """Write a comment, so that a connection that is gone is noticed on both sides."""
        await self._write_text(": alive\n\n")

    async def _write_text(self, text: str) -> None:
        await self._response.write(text.encode())


async def _keep_alive(stream: _EventStream) -> None:
    with suppress(ConnectionError):
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            await stream.keep_alive()


# -- requests and responses -----------------------------------------------------------------------


async def _send_static(request: web.Request) -> web.Response:
    path = _STATIC / request.match_info["name"]
    if path.name not in {file.name for file in _STATIC.iterdir()}:
        raise web.HTTPNotFound
    response = web.Response(
        body=path.read_bytes(),
        content_type=_STATIC_TYPES.get(path.suffix, "application/octet-stream"),
        charset="utf-8",
        headers={"Cache-Control": "no-cache"},
    )
    response.enable_compression()
    return response


def _read_page_request(request: web.Request) -> PageRequest:
    path = request.path.removeprefix("/-/live")
    query = {name: value for name, value in request.query.items() if name not in _STREAM_PARAMETERS}
    return PageRequest(path, dict(request.match_info), query)


def _read_number(request: web.Request, name: str) -> int:
    text = request.query.get(name, "0")
    if not text.isdecimal() or len(text) > 15:
        raise web.HTTPBadRequest
    return int(text)


def _read_replicas(request: web.Request) -> list[str]:
    return [name for name in request.query.getall("replica", []) if name]


def _encode_position(batch: LogBatch) -> str:
    numbers = (f"{name}:{number}" for name, number in sorted(batch.cursor.items()))
    return " ".join((batch.job, *numbers))


def _decode_position(text: str) -> tuple[str, Cursor]:
    job, *words = text.split(" ")
    cursor: dict[str, int] = {}
    for word in words:
        name, _, number = word.rpartition(":")
        if not number.isdecimal() or len(number) > 15:
            raise web.HTTPBadRequest
        cursor[name] = int(number)
    return job, cursor


def _render_batch(batch: LogBatch) -> Mapping[str, object]:
    return {
        "job": batch.job,
        "first": batch.first,
        "begin": batch.begin,
        "end": batch.end,
        "lines": [_render_line(line) for line in batch.lines],
    }


def _render_line(line: LogLine) -> tuple[str, int, str, str, bool]:
    """Return a line as the script shows it; escaping is the browser's, which sets it as text."""
    time = line.time.isoformat(timespec="milliseconds")
    text = clean_text(decode_log_line(line))
    return str(line.replica), line.attempt, time, text, line.is_transient


def _json_response(data: object) -> web.Response:
    return web.json_response(data)


def _html_response(html: Html, *, status: int = 200) -> web.Response:
    response = web.Response(text=html, status=status, content_type="text/html")
    response.enable_compression()
    return _add_headers(response)


def _text_response(status: int, text: str) -> web.Response:
    return _add_headers(web.Response(text=f"{text}\n", status=status, content_type="text/plain"))


def _error_response(error: DanluError) -> web.Response:
    return web.json_response(_describe_error(error), status=409)


def _describe_error(error: DanluError) -> Mapping[str, str]:
    return {"message": clean_text(error.message), "hint": clean_text(error.hint)}


def _add_headers(response: web.Response) -> web.Response:
    response.headers.update(SECURITY_HEADERS)
    return response
