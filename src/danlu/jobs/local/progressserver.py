"""Serves the training-progress protocol to the replicas of one job, inside its supervisor.

The end of a job must not depend on it: what cannot be served is said in :meth:`warnings`, and a
replica whose report is refused trains on.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import msgspec

from danlu.jobs.local.certificate import certificate_for, public_part
from danlu.jobs.local.smallhttp import HEADER_LIMIT, Reply, Request, answer
from danlu.jobs.types import Progress
from danlu.training.progress import CA_CERT, SERVER_URL, TOKEN, progress_of, status_path
from danlu.training.types import Job, ReplicaId
from danlu.util.files import write_atomic

__all__ = ["MOUNT", "ProgressServer"]

MOUNT = "/var/run/secrets/kubeflow/trainer"
"""Where a container finds its token and the certificate, as on a cluster."""

_LOOPBACK = "127.0.0.1"
_TOKEN_FILE, _CA_FILE = "token", "ca.crt"
_CONNECTIONS = 64
"""Connections at once; the protocol asks for one report in five seconds from one replica."""
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_REASONS = {401: "Unauthorized", 404: "NotFound", 405: "MethodNotAllowed", 422: "Invalid"}


class ProgressServer:
    """An asynchronous context manager: it listens on the loopback address within its block.

    ``on_progress`` is called in the event loop with every change of the job's progress: that of
    ``leader``, or until the leader says something that of the replica that spoke first.
    ``directory`` is private to the job, for the files that replicas read; ``certificates`` is
    where that of this machine is kept. Where none can be made the protocol is served by plain
    HTTP, which its programs accept and which does not leave this machine.
    """

    def __init__(
        self,
        on_progress: Callable[[Progress], None],
        *,
        job: Job,
        leader: ReplicaId,
        directory: Path,
        certificates: Path,
    ) -> None:
        self._on_progress = on_progress
        self._leader = leader
        self._speaker: ReplicaId | None = None
        self._path = status_path(job.namespace, job.name)
        self._directory = directory
        self._certificates = certificates
        self._server: asyncio.Server | None = None
        self._certificate = b""
        self._warnings: list[str] = []
        self._known: set[ReplicaId] = set()
        self._speakers: dict[str, ReplicaId] = {}
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ProgressServer:
        try:
            self._server = await self._listening()
        except OSError as error:
            self._warnings.append(f"training progress: not served: {error}")
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
        # Not wait_closed(): that waits for whoever has not finished shaking hands.
        await asyncio.gather(*connections, return_exceptions=True)
        self._server = None

    def warnings(self) -> Sequence[str]:
        """What could not be served."""
        return tuple(self._warnings)

    @property
    def port(self) -> int | None:
        """The port of ``127.0.0.1`` that replicas must reach; None where nothing is served."""
        if self._server is None:
            return None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def environment(
        self, replica: ReplicaId, *, files: Path | str | None = None
    ) -> Mapping[str, str]:
        """The variables that tell a replica's program where to report; none where nothing serves.

        ``files`` is where it sees :meth:`files` (:data:`MOUNT` in a container); a process finds
        them where they are. Proxies of this process's environment are told to leave us alone.
        """
        if self.port is None:
            return {}
        written = self.files(replica)
        place = files or written
        scheme = "https" if self._certificate else "http"
        variables = {
            SERVER_URL: f"{scheme}://{_LOOPBACK}:{self.port}{self._path}",
            TOKEN: f"{place}/{_TOKEN_FILE}",
        }
        if self._certificate:
            variables[CA_CERT] = f"{place}/{_CA_FILE}"
        return {**variables, **_past_proxies(os.environ)}

    def files(self, replica: ReplicaId) -> Path:
        """The directory of a replica's own token, and of the server's certificate.

        Who may enter ``directory`` may read them, whatever id a container gives its program.
        """
        place = self._directory / str(replica)
        if replica in self._known:
            return place
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        token = secrets.token_urlsafe(32)
        write_atomic(place / _TOKEN_FILE, token.encode(), sync=False)
        if self._certificate:
            write_atomic(place / _CA_FILE, self._certificate, sync=False)
        self._known.add(replica)
        self._speakers[token] = replica
        return place

    # -- serving ----------------------------------------------------------------------------------

    async def _listening(self) -> asyncio.Server:
        found = await certificate_for(_LOOPBACK, directory=self._certificates)
        context: ssl.SSLContext | None = None
        if found is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(found)
            self._certificate = public_part(found)
        return await asyncio.start_server(
            self._connected, _LOOPBACK, 0, ssl=context, limit=HEADER_LIMIT
        )

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= _CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            with suppress(asyncio.CancelledError):
                await answer(reader, writer, self._handle)
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    def _handle(self, request: Request) -> Reply:
        if request.path != self._path:
            return _refusal(404, "the path of this job's reports is in " + SERVER_URL)
        replica = self._speakers.get(request.bearer)
        if replica is None:
            return _refusal(401, "the token is not one of this job's")
        if request.method != "POST":
            return _refusal(405, "reports are posted")
        try:
            progress = progress_of(request.body)
        except ValueError as error:
            return _refusal(422, str(error))
        if progress is not None and self._speaks(replica):
            self._on_progress(progress)
        return Reply(200, request.body)

    def _speaks(self, replica: ReplicaId) -> bool:
        if self._speaker is None or replica == self._leader:
            self._speaker = replica
        return self._speaker == replica


def _refusal(code: int, message: str) -> Reply:
    # A Kubernetes Status, as the original answers.
    status = {
        "status": "Failure",
        "message": message,
        "reason": _REASONS[code],
        "code": code,
    }
    return Reply(code, msgspec.json.encode(status))


def _past_proxies(environ: Mapping[str, str]) -> dict[str, str]:
    lowered = {name.lower(): value for name, value in environ.items()}
    if not any(lowered.get(name) for name in _PROXIES):
        return {}
    known = [one for one in lowered.get("no_proxy", "").split(",") if one]
    if _LOOPBACK in known:
        return {}
    # Both spellings: programs look for one or the other.
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join([*known, _LOOPBACK]))
