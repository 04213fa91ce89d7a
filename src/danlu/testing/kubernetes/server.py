"""A Kubernetes API server that lives in memory and fails as it is told.

It serves the verbs over real HTTP as far as operators use them, and passes danlu's conformance
tests of API semantics beside a real server. There are no controllers, no scheduler and no kubelet
behind it but the garbage collector: a test says itself what becomes of a pod.
``python -m danlu.testing.kubernetes`` serves one until it is ended.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from danlu.testing.kubernetes import discovery
from danlu.testing.kubernetes.answers import MAX_BODY, Answers, as_json, verb_of
from danlu.testing.kubernetes.cluster import Cluster
from danlu.testing.kubernetes.faults import Fault, Logged, counted
from danlu.testing.kubernetes.refusals import Refusal

__all__ = ["FakeKubernetes", "Fault", "Logged"]

Object = dict[str, Any]


class FakeKubernetes:
    """The server; use as an async context manager. Its state may be looked at and changed.

    ``cluster`` has the objects. ``faults`` are used up in order; ``log`` has the requests that
    came, ``counts`` their number by verb and resource. With ``tokens`` one of those is needed.
    ``now`` gives the time of day.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        collecting: bool = True,
        port: int = 0,
    ) -> None:
        self.cluster = Cluster(now=now, collecting=collecting)
        self.faults: list[Fault] = []
        self.log: list[Logged] = []
        self.tokens: set[str] = set()
        self._tls = tls
        self._port = port
        self._answers = Answers(self.cluster)

    async def __aenter__(self) -> FakeKubernetes:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{path:.*}", self._answer)
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
        """Its address."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """Requests by verb and resource (``("create", "pods")``)."""
        return counted(self.log)

    def bookmark(self) -> None:
        """Send a bookmark to every watch that asked for them."""
        for watch in self._answers.watches:
            watch.bookmark()

    @property
    def watches(self) -> int:
        """How many watch now."""
        return len(self._answers.watches)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._respond(request)
        except Refusal as refusal:
            headers = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else {}
            if not refusal.reason:
                return web.Response(text=refusal.message + "\n", status=refusal.code)
            return as_json(refusal.status(), refusal.code, headers)

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        if request.path in ("/healthz", "/readyz", "/livez"):
            return web.Response(text="ok")
        self._authenticate(request)
        said = discovery.document(request.path, self.cluster.kinds.values())
        if said is not None and request.method == "GET":
            return as_json(said)
        target = self._answers.target(request.path)
        logged = Logged(verb_of(request, target), target.resource, target.namespace, target.name)
        self.log.append(logged)
        fault = next((one for one in self.faults if one.fits(logged)), None)
        if fault is not None:
            fault.times -= 1
            await self._fail(request, fault)
        response = await self._answers.serve(request, target, logged.verb)
        if fault is not None and fault.drop:
            _drop(request)
        return response

    def _authenticate(self, request: web.Request) -> None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens and token not in self.tokens:
            raise Refusal(401, "Unauthorized", "Unauthorized")

    async def _fail(self, request: web.Request, fault: Fault) -> None:
        if fault.delay:
            await asyncio.sleep(fault.delay)
        if fault.drop and not fault.after:
            _drop(request)
            raise Refusal(500, "InternalError", "nobody hears this")
        if fault.status:
            reason = _REASONS.get(fault.status, "InternalError")
            raise Refusal(fault.status, reason, "told to fail", retry_after=fault.retry_after)


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


def _drop(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
