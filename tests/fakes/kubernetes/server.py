"""A Kubernetes API server in memory that fails on request.

It serves the verbs over real HTTP as far as operators use them, and passes danlu's conformance
tests of API semantics, which a real server passes too. It has a garbage collector but no other
controller, no scheduler and no kubelet: tests set the status of pods. ``python -m
tests.fakes.kubernetes`` serves one until interrupted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from tests.fakes.kubernetes import discovery
from tests.fakes.kubernetes.cluster import FakeCluster
from tests.fakes.kubernetes.faults import ApiFault, LoggedRequest, count_requests
from tests.fakes.kubernetes.handlers import MAX_BODY, RequestHandlers, json_response, request_verb
from tests.fakes.kubernetes.status_errors import StatusError

__all__ = ["ApiFault", "FakeKubernetes", "LoggedRequest"]

Object = dict[str, Any]


class FakeKubernetes:
    """The server; use as an async context manager. Tests may read and change its state.

    ``cluster`` has the objects. ``faults`` are used up in order; ``log`` has the received requests,
    ``counts`` their number by verb and resource. If ``tokens`` is not empty, requests need one of
    them. ``now`` returns the time of day.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        collecting: bool = True,
        port: int = 0,
    ) -> None:
        self.cluster = FakeCluster(now=now, collecting=collecting)
        self.faults: list[ApiFault] = []
        self.log: list[LoggedRequest] = []
        self.tokens: set[str] = set()
        self._tls = tls
        self._port = port
        self._handlers = RequestHandlers(self.cluster)

    async def __aenter__(self) -> FakeKubernetes:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._handle_request)
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cluster.storage.end_watches()
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        """Its URL."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """The number of requests by verb and resource (``("create", "pods")``)."""
        return count_requests(self.log)

    def bookmark(self) -> None:
        """Send a bookmark to every watch that requested them."""
        for watch in self._handlers.watches:
            watch.bookmark()

    @property
    def watches(self) -> int:
        """The number of open watches."""
        return len(self._handlers.watches)

    async def _handle_request(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._dispatch_request(request)
        except StatusError as refusal:
            headers = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else {}
            if not refusal.reason:
                return web.Response(text=refusal.message + "\n", status=refusal.code)
            return json_response(refusal.to_status(), refusal.code, headers)

    async def _dispatch_request(self, request: web.Request) -> web.StreamResponse:
        if request.path in ("/healthz", "/readyz", "/livez"):
            return web.Response(text="ok")
        self._check_token(request)
        output = discovery.document(request.path, self.cluster.kinds.values())
        if output is not None and request.method == "GET":
            return json_response(output)
        target = self._handlers.parse_target(request.path)
        logged = LoggedRequest(
            request_verb(request, target), target.resource, target.namespace, target.name
        )
        self.log.append(logged)
        fault = next((candidate for candidate in self.faults if candidate.matches(logged)), None)
        if fault is not None:
            fault.times -= 1
            await self._apply_fault(request, fault)
        response = await self._handlers.handle(request, target, logged.verb)
        if fault is not None and fault.drop:
            _drop_connection(request)
        return response

    def _check_token(self, request: web.Request) -> None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens and token not in self.tokens:
            raise StatusError(401, "Unauthorized", "Unauthorized")

    async def _apply_fault(self, request: web.Request, fault: ApiFault) -> None:
        if fault.delay:
            await asyncio.sleep(fault.delay)
        if fault.release is not None:
            await fault.release.wait()
        if fault.drop and not fault.after:
            _drop_connection(request)
            raise StatusError(500, "InternalError", "nobody hears this")
        if fault.status:
            reason = _REASONS.get(fault.status, "InternalError")
            raise StatusError(fault.status, reason, "injected fault", retry_after=fault.retry_after)


_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
    504: "Timeout",
}


def _drop_connection(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
