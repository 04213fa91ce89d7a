"""An image registry in memory that fails on request.

It follows the OCI distribution spec as far as clients use it, and passes danlu's own conformance
tests, which a real one passes too. ``python -m tests.fakes.registry`` serves one until interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import hashlib
import json
import re
import ssl
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

__all__ = ["FakeRegistry", "RegistryFault", "RegistryRequest"]

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True, slots=True)
class RegistryRequest:
    """A request and the status of its response (0 if the connection was dropped)."""

    method: str
    path: str
    status: int
    headers: Mapping[str, str]


@dataclass(slots=True)
class RegistryFault:
    """A fault that occurs ``times`` times, for requests with a matching method and path.

    Either ``status`` is answered, with ``headers``; or the connection is dropped after
    ``drop_after`` bytes of the content have been sent or, in an upload, received; or the request is
    obeyed but its connection dropped (``drop_response``); or it is never read (``stall``); or the
    content is sent byte by byte, a hundred a second (``drip``).
    """

    method: str = ""
    path: str = ""
    times: int = 1
    status: int = 0
    drop_after: int = -1
    headers: Mapping[str, str] = field(default_factory=dict)
    drop_response: bool = False
    stall: bool = False
    drip: bool = False

    def matches(self, request: web.BaseRequest) -> bool:
        """Return whether this fault applies to the request."""
        return self.times > 0 and self.method in ("", request.method) and self.path in request.path


@dataclass(slots=True)
class _PendingUpload:
    repository: str
    data: bytearray = field(default_factory=bytearray)


class FakeRegistry:
    """The registry; use as an async context manager. Tests may read and change its state.

    ``blobs`` are shared by all repositories, ``linked`` says which repository may be asked for
    which; ``manifests`` maps (repository, tag or digest) to bytes and media type. ``faults`` are
    used up in order. ``ranges``: whether a part of a blob may be asked for; ``resumable``: whether
    an upload's progress may be. With ``users`` (name to password) a login is needed, by token, or
    by password alone where ``tokens`` is false; ``public`` lets everybody pull. With
    ``redirect_blobs_to`` and ``uploads_at`` (addresses) other servers have the blobs.
    ``stated_digest`` replaces what manifests are said to be (empty: nothing is said), ``shift``
    moves the parts that are sent of blobs. Longer requests than ``max_request`` bytes are refused,
    and ``min_part`` is the length that parts of an upload must have. Before the first request of
    each method in ``revoke_before`` all tokens expire.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self.blobs: dict[str, bytes] = {}
        self.linked: dict[str, set[str]] = {}
        self.manifests: dict[tuple[str, str], tuple[bytes, str]] = {}
        self.wrong: dict[str, bytes] = {}
        self.faults: list[RegistryFault] = []
        self.log: list[RegistryRequest] = []
        self.users: dict[str, str] = {}
        self.identity_tokens: dict[str, str] = {}
        self.tokens = True
        self.public = False
        self.ranges = True
        self.resumable = True
        self.redirect_blobs_to = ""
        self.uploads_at = ""
        self.stated_digest: str | None = None
        self.shift = 0
        self.token_life: float = 300
        self.realm = ""
        self.max_request = 0
        self.min_part = 0
        self.revoke_before: tuple[str, ...] = ()
        self._released = asyncio.Event()
        self._tls = tls
        self._port = port
        self._uploads: dict[str, _PendingUpload] = {}
        self._issued: dict[str, set[str]] = {}

    async def __aenter__(self) -> FakeRegistry:
        app = web.Application(client_max_size=1 << 40)
        app.router.add_route("*", "/{path:.*}", self._handle_request)
        self._router = _build_routes(self)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._released.set()
        await self._runner.cleanup()

    @property
    def host(self) -> str:
        """Host and port, as references name it."""
        return f"localhost:{self._port}"

    @property
    def url(self) -> str:
        """Its URL."""
        return f"{'https' if self._tls else 'http'}://{self.host}"

    def put_blob(self, repository: str, data: bytes) -> str:
        """Put a blob in; gives its digest."""
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        self.linked.setdefault(repository, set()).add(digest)
        return digest

    def put_manifest(self, repository: str, raw: bytes, *, tag: str = "", kind: str = "") -> str:
        """Put a manifest in, under its digest and ``tag``; gives its digest."""
        digest = "sha256:" + hashlib.sha256(raw).hexdigest()
        kind = kind or json.loads(raw).get("mediaType") or _MANIFEST
        for target in (digest, tag) if tag else (digest,):
            self.manifests[repository, target] = (raw, kind)
        return digest

    def requests(self, method: str = "", path: str = "") -> list[RegistryRequest]:
        """The requests that came with that method, and ``path`` in their path."""
        return [
            request
            for request in self.log
            if method in ("", request.method) and path in request.path
        ]

    def revoke_tokens(self) -> None:
        """Refuse all tokens issued so far."""
        self._issued.clear()

    async def _handle_request(self, request: web.Request) -> web.StreamResponse:
        status = 0
        try:
            response = await self._dispatch_request(request)
            status = response.status
            return response
        except web.HTTPException as error:
            status = error.status
            raise
        finally:
            headers = dict(request.headers)
            self.log.append(RegistryRequest(request.method, request.path, status, headers))

    async def _dispatch_request(self, request: web.Request) -> web.StreamResponse:
        fault = self._next_fault(request)
        if fault is not None and fault.status:
            text = _encode_error("UNAVAILABLE", "injected fault")
            return web.Response(status=fault.status, body=text, headers=fault.headers)
        if fault is not None and fault.stall:
            await self._released.wait()
        if 0 < self.max_request < (request.content_length or 0):
            return web.Response(status=413, body=b"<h1>413 Request Entity Too Large</h1>")
        if request.method in self.revoke_before:
            self.revoke_before = tuple(set(self.revoke_before) - {request.method})
            self.revoke_tokens()
        if request.path == "/token":
            return await self._issue_token(request)
        refused = self._check_authorization(request)
        if refused is not None:
            return refused
        for method, pattern, handler in self._router:
            match = pattern.fullmatch(request.path)
            if match and request.method in method:
                response = await handler(request, fault, **match.groupdict())
                if fault is not None and fault.drop_response:
                    _drop_connection(request)
                return response
        return web.Response(status=404, body=_encode_error("UNSUPPORTED", "no such route"))

    def _next_fault(self, request: web.Request) -> RegistryFault | None:
        for fault in self.faults:
            if fault.matches(request):
                fault.times -= 1
                return fault
        return None

    # Authorization (distribution, docs/spec/auth/token.md)

    def _check_authorization(self, request: web.Request) -> web.Response | None:
        if not self.users:
            return None
        repository = _repository_of(request.path)
        needed = "pull" if request.method in ("GET", "HEAD") else "push"
        value = request.headers.get("Authorization", "")
        if self.tokens:
            allowed = self._issued.get(value.removeprefix("Bearer "), set())
            if value.startswith("Bearer ") and (
                not repository or f"{repository}:{needed}" in allowed
            ):
                return None
            realm = self.realm or f"{self.url}/token"
            challenge = f'Bearer realm="{realm}",service="fake"'
            if repository:
                challenge += f',scope="repository:{repository}:{needed}"'
        else:
            if self._is_known_user(value) or (self.public and needed == "pull" and repository):
                return None
            challenge = 'Basic realm="fake"'
        return web.Response(
            status=401,
            body=_encode_error("UNAUTHORIZED", "authentication required"),
            headers={"WWW-Authenticate": challenge},
        )

    def _is_known_user(self, given: str) -> bool:
        try:
            name, _, password = (
                base64.b64decode(given.removeprefix("Basic ")).decode().partition(":")
            )
        except ValueError:
            return False
        return given.startswith("Basic ") and self.users.get(name) == password

    async def _issue_token(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            form = await request.post()
            known = str(form.get("refresh_token", "")) in self.identity_tokens
            scopes = str(form.get("scope", "")).split()
        else:
            value = request.headers.get("Authorization", "")
            known = self._is_known_user(value)
            if value and not known:
                return web.Response(
                    status=401, body=_encode_error("UNAUTHORIZED", "wrong password")
                )
            scopes = request.query.getall("scope", [])
        allowed = set()
        for scope in scopes:
            _, repository, actions = scope.split(":", 2)
            for action in actions.split(","):
                if known or (self.public and action == "pull"):
                    allowed.add(f"{repository}:{action}")
        token = uuid.uuid4().hex
        self._issued[token] = allowed
        return web.json_response({"token": token, "expires_in": self.token_life})

    # Pulling

    async def version(
        self, request: web.Request, fault: RegistryFault | None
    ) -> web.StreamResponse:
        """``/v2/``: that there is a registry."""
        return web.json_response({}, headers={"Docker-Distribution-Api-Version": "registry/2.0"})

    async def tags(
        self, request: web.Request, fault: RegistryFault | None, repository: str
    ) -> web.StreamResponse:
        """The tags of a repository."""
        result = sorted(
            tag for name, tag in self.manifests if name == repository and ":" not in tag
        )
        if not result:
            return web.Response(
                status=404, body=_encode_error("NAME_UNKNOWN", "no such repository")
            )
        return web.json_response({"name": repository, "tags": result})

    async def manifest(
        self, request: web.Request, fault: RegistryFault | None, repository: str, target: str
    ) -> web.StreamResponse:
        """A manifest by tag or digest."""
        result = self.manifests.get((repository, target))
        if result is None:
            return web.Response(
                status=404, body=_encode_error("MANIFEST_UNKNOWN", "manifest unknown")
            )
        raw, kind = result
        digest = "sha256:" + hashlib.sha256(raw).hexdigest()
        headers = {"Content-Type": kind, **self._digest_header(digest)}
        if fault is not None and fault.drip:
            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            await self._drip(response, raw)
            return response
        return web.Response(body=self.wrong.get(digest, raw), headers=headers)

    def _digest_header(self, digest: str) -> dict[str, str]:
        stated = digest if self.stated_digest is None else self.stated_digest
        return {"Docker-Content-Digest": stated} if stated else {}

    async def _drip(self, response: web.StreamResponse, data: bytes) -> None:
        with contextlib.suppress(ConnectionResetError):
            for byte in data:
                await response.write(bytes([byte]))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._released.wait(), 0.01)
                    return

    async def blob(
        self, request: web.Request, fault: RegistryFault | None, repository: str, digest: str
    ) -> web.StreamResponse:
        """A blob, or a part of it."""
        if digest not in self.blobs or digest not in self.linked.get(repository, ()):
            return web.Response(status=404, body=_encode_error("BLOB_UNKNOWN", "blob unknown"))
        if self.redirect_blobs_to and request.method == "GET":
            url = f"{self.redirect_blobs_to}/v2/{repository}/blobs/{digest}"
            return web.Response(status=307, headers={"Location": url})
        data = self.wrong.get(digest, self.blobs[digest])
        start = 0
        expected = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        headers = {"Docker-Content-Digest": digest, "Content-Length": str(len(data))}
        if expected and self.ranges:
            start = max(0, int(expected[1]) + self.shift)
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            headers["Content-Length"] = str(len(data) - start)
        response = web.StreamResponse(status=206 if expected and self.ranges else 200)
        response.headers.update(headers)
        if request.method == "HEAD":
            return response
        await response.prepare(request)
        if fault is not None and fault.drip:
            await self._drip(response, data[start:])
            return response
        end = start + fault.drop_after if fault is not None and fault.drop_after >= 0 else len(data)
        await response.write(data[start:end])
        if end < len(data):
            _drop_connection(request)
        return response

    # Pushing

    async def begin_upload(
        self, request: web.Request, fault: RegistryFault | None, repository: str
    ) -> web.StreamResponse:
        """A place for a blob, or the blob of another repository mounted."""
        mounted, source = request.query.get("mount", ""), request.query.get("from", "")
        if mounted in self.linked.get(source, ()):
            self.linked.setdefault(repository, set()).add(mounted)
            return web.Response(
                status=201, headers={"Location": f"/v2/{repository}/blobs/{mounted}"}
            )
        name = uuid.uuid4().hex
        self._uploads[name] = _PendingUpload(repository)
        return self._upload_response(name)

    def _upload_response(self, name: str, status: int = 202) -> web.Response:
        upload = self._uploads[name]
        url = f"{self.uploads_at}/v2/{upload.repository}/blobs/uploads/{name}"
        headers = {
            "Location": f"{url}?_state=a%2Fb%3D%3D",
            "Range": f"0-{max(0, len(upload.data) - 1)}",
            "Docker-Upload-UUID": name,
        }
        if self.min_part:
            headers["OCI-Chunk-Min-Length"] = str(self.min_part)
        return web.Response(status=status, headers=headers)

    async def upload(
        self, request: web.Request, fault: RegistryFault | None, repository: str, name: str
    ) -> web.StreamResponse:
        """A part of a blob (PATCH), its end (PUT), how far it is (GET), or never mind (DELETE)."""
        upload = self._uploads.get(name)
        if upload is None or request.query.get("_state") != "a/b==":
            return web.Response(
                status=404, body=_encode_error("BLOB_UPLOAD_UNKNOWN", "upload unknown")
            )
        if request.method == "DELETE":
            del self._uploads[name]
            return web.Response(status=204)
        if request.method == "GET":
            if not self.resumable:
                return web.Response(status=404, body=_encode_error("UNSUPPORTED", "not resumable"))
            return self._upload_response(name, 204)
        if not await self._receive_chunk(request, fault, upload):
            if not self.resumable:
                del self._uploads[name]
            return web.Response(status=500)
        if request.method == "PATCH":
            return self._upload_response(name)
        return self._finish_upload(name, request.query.get("digest", ""))

    async def _receive_chunk(
        self, request: web.Request, fault: RegistryFault | None, upload: _PendingUpload
    ) -> bool:
        start = request.headers.get("Content-Range", "").partition("-")[0]
        if start and int(start) != len(upload.data):
            raise web.HTTPRequestRangeNotSatisfiable()
        remaining = fault.drop_after if fault is not None and fault.drop_after >= 0 else -1
        async for chunk in request.content.iter_any():
            if 0 <= remaining < len(chunk):
                upload.data += chunk[:remaining]
                _drop_connection(request)
                return False
            upload.data += chunk
            remaining -= len(chunk) if remaining >= 0 else 0
        return True

    def _finish_upload(self, name: str, digest: str) -> web.Response:
        upload = self._uploads.pop(name)
        if "sha256:" + hashlib.sha256(upload.data).hexdigest() != digest:
            return web.Response(status=400, body=_encode_error("DIGEST_INVALID", "digest invalid"))
        self.put_blob(upload.repository, bytes(upload.data))
        return web.Response(
            status=201, headers={"Location": f"/v2/{upload.repository}/blobs/{digest}"}
        )

    async def take_manifest(
        self, request: web.Request, fault: RegistryFault | None, repository: str, target: str
    ) -> web.StreamResponse:
        """A manifest whose blobs have all been pushed."""
        raw = await request.read()
        value = json.loads(raw)
        needed = [value["config"], *value["layers"]] if "config" in value else []
        for descriptor in needed:
            if descriptor["digest"] not in self.linked.get(repository, ()):
                body = _encode_error(
                    "MANIFEST_BLOB_UNKNOWN", f"blob unknown: {descriptor['digest']}"
                )
                return web.Response(status=400, body=body)
        digest = self.put_manifest(
            repository,
            raw,
            tag="" if target.startswith("sha256:") else target,
            kind=request.headers.get("Content-Type", ""),
        )
        return web.Response(status=201, headers=self._digest_header(digest))


_Handler = Callable[..., Awaitable[web.StreamResponse]]


def _build_routes(
    registry: FakeRegistry,
) -> list[tuple[tuple[str, ...], re.Pattern[str], _Handler]]:
    name = r"(?P<repository>[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    target, digest = r"(?P<target>[\w.:-]+)", r"(?P<digest>sha256:[0-9a-f]{64})"
    routes: list[tuple[tuple[str, ...], str, _Handler]] = [
        (("GET", "HEAD"), "/v2/", registry.version),
        (("GET",), f"/v2/{name}/tags/list", registry.tags),
        (("GET", "HEAD"), f"/v2/{name}/manifests/{target}", registry.manifest),
        (("PUT",), f"/v2/{name}/manifests/{target}", registry.take_manifest),
        (("GET", "HEAD"), f"/v2/{name}/blobs/{digest}", registry.blob),
        (("POST",), f"/v2/{name}/blobs/uploads/", registry.begin_upload),
        (
            ("GET", "PATCH", "PUT", "DELETE"),
            f"/v2/{name}/blobs/uploads/(?P<name>[0-9a-f]+)",
            registry.upload,
        ),
    ]
    return [(methods, re.compile(pattern), handler) for methods, pattern, handler in routes]


def _repository_of(path: str) -> str:
    match = re.match(r"/v2/(.+?)/(?:manifests|blobs|tags)/", path)
    return match[1] if match else ""


def _drop_connection(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _encode_error(code: str, message: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": message}]}).encode()


async def _serve_forever(arguments: argparse.Namespace) -> None:
    registry = FakeRegistry(port=arguments.port)
    if arguments.user:
        name, _, password = arguments.user.partition(":")
        registry.users = {name: password}
        registry.tokens = not arguments.basic
    async with registry:
        print(registry.host, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve a registry on this machine; its address is the first line printed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fakes.registry", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--user", default="", metavar="NAME:PASSWORD", help="who may log in")
    parser.add_argument("--basic", action="store_true", help="by password, without tokens")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_forever(parser.parse_args()))


if __name__ == "__main__":
    main()
