"""Serve the training-progress protocol to the replicas of one job, inside its supervisor.

A job must not fail because of it: if the server cannot be started, that is a warning, and a replica
whose report is rejected trains on.

The few lines of HTTP are our own, because every job pays for what its supervisor imports:
``http.server`` would add 23 modules to its start, and aiohttp hundreds of milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType

import msgspec

from danlu.replica_runtime.report import merge_points
from danlu.training.progress import (
    CA_CERT,
    MAX_REPORT_BYTES,
    SERVER_URL,
    TOKEN,
    Points,
    TrainingProgress,
    parse_progress,
    status_path,
)
from danlu.training.types import Job, ReplicaId
from danlu.util.certificate import extract_certificate, load_or_create_certificate
from danlu.util.files import write_atomic

CREDENTIALS_MOUNT = "/var/run/secrets/kubeflow/trainer"
"""Where a container finds its token and the server's certificate, as on a cluster."""

_LOOPBACK = "127.0.0.1"
_TOKEN_FILE, _CA_FILE = "token", "ca.crt"
# The protocol asks for one report per replica every five seconds.
_MAX_CONNECTIONS = 64
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")
_REASONS = {401: "Unauthorized", 404: "NotFound", 405: "MethodNotAllowed", 422: "Invalid"}


class ProgressServer:
    """An asynchronous context manager that listens on the loopback address.

    ``on_progress`` is called in the event loop with every change of the job's progress: that of the
    ``leader``, or until the leader reports, that of the first replica to report. The history
    contains only what this replica reported. ``directory`` is private to the job, for the files
    that replicas read; ``certificates`` is where this machine's certificate is kept. If none can be
    created, the server uses plain HTTP, which the protocol's clients accept and which does not
    leave this machine.
    """

    def __init__(
        self,
        on_progress: Callable[[TrainingProgress], None],
        *,
        job: Job,
        leader: ReplicaId,
        directory: Path,
        certificates: Path,
    ) -> None:
        self._on_progress = on_progress
        self._leader = leader
        self._source: ReplicaId | None = None
        self._history: Mapping[str, Points] = {}
        self._path = status_path(job.namespace, job.name)
        self._directory = directory
        self._certificates = certificates
        self._server: asyncio.Server | None = None
        self._certificate = b""
        self._warnings: list[str] = []
        self._known: set[ReplicaId] = set()
        self._replicas_by_token: dict[str, ReplicaId] = {}
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ProgressServer:
        try:
            self._server = await self._start_server()
        except OSError as error:
            self._warnings.append(f"training progress is not available: {error}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        connections = tuple(self._connections)
        for connection in connections:
            connection.cancel()
        # Not wait_closed(), which waits for clients that never finish their TLS handshake.
        await asyncio.gather(*connections, return_exceptions=True)
        self._server = None

    def warnings(self) -> Sequence[str]:
        """Return why the server could not be started."""
        return tuple(self._warnings)

    @property
    def port(self) -> int | None:
        """The port on ``127.0.0.1`` that replicas must reach; None if the server is not running."""
        if self._server is None:
            return None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def environment(
        self, replica: ReplicaId, *, files: Path | str | None = None
    ) -> Mapping[str, str]:
        """Return the variables that tell a replica's program where to report.

        ``files`` is where it sees :meth:`files` (:data:`CREDENTIALS_MOUNT` in a container); None if
        it sees the host's paths. If this process uses a proxy, the server is excluded from it.
        """
        if self.port is None:
            return {}
        directory = self.files(replica)
        seen = files or directory
        scheme = "https" if self._certificate else "http"
        variables = {
            SERVER_URL: f"{scheme}://{_LOOPBACK}:{self.port}{self._path}",
            TOKEN: f"{seen}/{_TOKEN_FILE}",
        }
        if self._certificate:
            variables[CA_CERT] = f"{seen}/{_CA_FILE}"
        return {**variables, **_no_proxy_env(os.environ)}

    def files(self, replica: ReplicaId) -> Path:
        """Return the directory with a replica's own token and the server's certificate.

        The files are readable by all, because a container may run as any user; only the parent
        ``directory`` is private.
        """
        directory = self._directory / str(replica)
        if replica in self._known:
            return directory
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Every user of the machine reaches the loopback interface; the token says who reports.
        token = secrets.token_urlsafe(32)
        write_atomic(directory / _TOKEN_FILE, token.encode(), sync=False)
        if self._certificate:
            write_atomic(directory / _CA_FILE, self._certificate, sync=False)
        self._known.add(replica)
        self._replicas_by_token[token] = replica
        return directory

    # -- serving ----------------------------------------------------------------------------------

    async def _start_server(self) -> asyncio.Server:
        certificate = await load_or_create_certificate(_LOOPBACK, directory=self._certificates)
        context: ssl.SSLContext | None = None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            # Another job that starts first on this machine may replace the file at any time.
            with certificate.open("rb") as file:
                context.load_cert_chain(f"/dev/fd/{file.fileno()}")
                file.seek(0)  # only Linux opens the file anew
                self._certificate = extract_certificate(file.read())
        return await asyncio.start_server(
            self._on_connection, _LOOPBACK, 0, ssl=context, limit=_MAX_HEADER_BYTES
        )

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            with suppress(asyncio.CancelledError):
                await _serve_connection(reader, writer, self._handle_request)
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    def _handle_request(self, request: ProgressRequest) -> HttpReply:
        if request.path != self._path:
            return _status_reply(404, f"unknown path; reports go to the URL in {SERVER_URL}")
        replica = self._replicas_by_token.get(request.bearer)
        if replica is None:
            return _status_reply(401, "invalid token for this job")
        if request.method != "POST":
            return _status_reply(405, "only POST is allowed")
        try:
            progress = parse_progress(request.body)
        except ValueError as error:
            return _status_reply(422, str(error))
        if progress is not None and self._is_source(replica):
            self._history = merge_points(self._history, progress.history)
            self._on_progress(msgspec.structs.replace(progress, history=self._history))
        return HttpReply(200, request.body)

    def _is_source(self, replica: ReplicaId) -> bool:
        """Return whether the job's progress is this replica's; the leader always takes over."""
        if self._source is None or (replica == self._leader != self._source):
            self._source, self._history = replica, {}
        return self._source == replica


def _status_reply(code: int, message: str) -> HttpReply:
    # A Kubernetes Status, like the replies of Kubeflow's controller.
    status = {
        "status": "Failure",
        "message": message,
        "reason": _REASONS[code],
        "code": code,
    }
    return HttpReply(code, msgspec.json.encode(status))


def _no_proxy_env(environ: Mapping[str, str]) -> dict[str, str]:
    lowered = {name.lower(): value for name, value in environ.items()}
    if not any(lowered.get(name) for name in _PROXY_VARIABLES):
        return {}
    hosts = [host for host in lowered.get("no_proxy", "").split(",") if host]
    if _LOOPBACK in hosts:
        return {}
    # Programs read one spelling or the other.
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join([*hosts, _LOOPBACK]))


# -- HTTP/1.1 (RFC 9112): one request per connection, with a limit on everything ------------------

_MAX_HEADER_BYTES = 16 << 10
_REQUEST_TIMEOUT = 10.0  # the read timeout of Kubeflow's server


@dataclass(frozen=True, slots=True)
class ProgressRequest:
    """A request; names of headers are lowercase."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def bearer(self) -> str:
        """The token of the Authorization header (RFC 6750); empty without one."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A reply: a status code and a JSON body."""

    code: int
    body: bytes = b""


class _HttpError(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


async def _serve_connection(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    handle: Callable[[ProgressRequest], HttpReply],
) -> None:
    """Read one request, send the reply of ``handle``, and close the connection.

    A client that disconnects or exceeds the time limit gets no reply.
    """
    try:
        async with asyncio.timeout(_REQUEST_TIMEOUT):
            try:
                reply = handle(await _read_request(reader, writer))
            except _HttpError as error:
                reply = HttpReply(error.code)
            writer.write(_format_reply(reply))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    except (TimeoutError, OSError, asyncio.IncompleteReadError):
        pass


async def _read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> ProgressRequest:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise _HttpError(431) from error
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise _HttpError(400)
    headers = {
        name.strip().lower(): value.strip()
        for name, colon, value in (line.partition(":") for line in lines)
        if colon
    }
    size = _body_size(headers)
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return ProgressRequest(words[0], words[1], headers, await reader.readexactly(size))


def _body_size(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise _HttpError(411)
    text = headers.get("content-length", "0")
    if not text.isascii() or not text.isdigit():
        raise _HttpError(400)
    # Check the number of digits first: int() of a very long number is slow.
    if len(text) > 9 or int(text) > MAX_REPORT_BYTES:
        raise _HttpError(413)
    return int(text)


def _format_reply(reply: HttpReply) -> bytes:
    head = (
        f"HTTP/1.1 {reply.code} {HTTPStatus(reply.code).phrase}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(reply.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + reply.body
