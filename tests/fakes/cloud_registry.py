"""Registries of clouds: a proxy that checks their logins in front of a real registry.

It is the HTTP proxy of a test (``HTTPS_PROXY``), and answers itself for every host, by TLS with one
certificate. So a client uses the real names, and sends what it would send to the cloud.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import secrets
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from danlu.oci.registry.clouds import find_cloud

EXPIRED = "Your authorization token has expired. Reauthenticate and try again."
_HOP_HEADERS = ("connection", "transfer-encoding", "keep-alive", "authorization")


@dataclass
class CloudRequest:
    """A request, with the status of its answer."""

    method: str
    host: str
    path: str
    authorization: str
    status: int = 0


@dataclass
class CloudProxy:
    """What the clouds accept; tests change it while a client works.

    ``passwords`` are those that a client may send (with any name), ``refresh_tokens`` those that
    Azure exchanges; ``expire_before`` are methods: before the next request of each, all of them and
    the bearer tokens made from them expire, and ``renewed`` takes their place. ``repositories`` are
    those that exist in Amazon ECR (None: all). ``denied``, ``immutable``, ``refused_type`` (of
    manifests) and ``throttled`` are its other answers; ``realm`` replaces the address of the token
    server. ``apis`` are hosts that another server of this machine answers for, without a login.
    """

    registry: str
    certificate: Path
    port: int = 0
    passwords: set[str] = field(default_factory=set)
    refresh_tokens: set[str] = field(default_factory=set)
    renewed: set[str] = field(default_factory=set)
    expire_before: list[str] = field(default_factory=list)
    repositories: set[str] | None = None
    denied: str = ""
    immutable: bool = False
    refused_type: str = ""
    fails_to_cancel: bool = False
    throttled: int = 0
    realm: str = ""
    expired_status: int = 403
    apis: dict[str, str] = field(default_factory=dict)
    log: list[CloudRequest] = field(default_factory=list)
    bearers: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def environ(self) -> dict[str, str]:
        """Return the variables with which a client reaches all hosts here."""
        return {
            "HTTPS_PROXY": f"http://127.0.0.1:{self.port}",
            "https_proxy": f"http://127.0.0.1:{self.port}",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "SSL_CERT_FILE": str(self.certificate),
        }

    def requests(self, method: str = "", path: str = "") -> list[CloudRequest]:
        """Return the requests of a method with ``path`` in their paths."""
        return [
            request
            for request in self.log
            if method in ("", request.method) and path in request.path
        ]

    def expire(self, method: str) -> None:
        """Let all logins expire if a request of this method is to be the first without them."""
        with self.lock:
            if method in self.expire_before:
                self.expire_before.remove(method)
                self.passwords, self.refresh_tokens = set(self.renewed), set(self.renewed)
                self.bearers.clear()

    def accepts(self, cloud: str, authorization: str) -> bool:
        """Return whether a request with this header may reach the registry."""
        scheme, _, value = authorization.partition(" ")
        if cloud == "ecr":
            return scheme == "Basic" and self.knows_password(value)
        return scheme == "Bearer" and value in self.bearers

    def knows_password(self, encoded: str) -> bool:
        """Return whether the value of a Basic header has a valid password."""
        _, _, password = base64.b64decode(encoded).decode().partition(":")
        return password in self.passwords

    def issue_bearer(self) -> dict[str, Any]:
        """Return the answer of a token server."""
        token = secrets.token_hex(8)
        self.bearers.add(token)
        return {"access_token": token}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: CloudProxy
    tls: ssl.SSLContext

    def do_CONNECT(self) -> None:
        self.host = self.path.rpartition(":")[0]
        self.send_response(200)
        self.end_headers()
        try:
            # The requests that follow on this connection are to that host.
            self.connection = self.tls.wrap_socket(self.connection, server_side=True)
        except OSError:
            self.close_connection = True
            return
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)

    def finish(self) -> None:
        super().finish()
        self.connection.close()

    def handle_request(self) -> None:
        body = self._read_body()
        proxy = self.proxy
        proxy.expire(self.command)
        entry = CloudRequest(
            self.command, self.host, self.path, self.headers.get("Authorization", "")
        )
        proxy.log.append(entry)
        if self.host in proxy.apis:
            entry.status = self._forward(proxy.apis[self.host], body)
            return
        cloud = find_cloud(self.host)
        kind = cloud.kind if cloud else "ecr"
        if urlsplit(self.path).path in ("/v2/token", "/oauth2/token", "/token/"):
            status, answer = self._exchange_login(body)
            entry.status = self._answer(status, answer)
            return
        refusal = self._refuse_request(kind, entry.authorization)
        if refusal is not None:
            entry.status = self._answer(*refusal)
            return
        entry.status = self._forward(proxy.registry, body)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self.handle_request
        raise AttributeError(name)

    def _refuse_request(
        self, kind: str, authorization: str
    ) -> tuple[int, dict[str, Any], dict[str, str]] | None:
        proxy = self.proxy
        if proxy.throttled:
            proxy.throttled -= 1
            return 429, _describe_error("TOOMANYREQUESTS", "Rate exceeded"), {"Retry-After": "0"}
        if not proxy.accepts(kind, authorization):
            if kind == "ecr" and authorization and proxy.expired_status != 401:
                return proxy.expired_status, _describe_error("DENIED", EXPIRED), {}
            message = "authentication required"
            return 401, _describe_error("UNAUTHORIZED", message), self._challenge(kind)
        if proxy.fails_to_cancel and self.command == "DELETE":
            return 500, _describe_error("UNKNOWN", "internal error"), {}
        path = urlsplit(self.path).path.removeprefix("/v2/")
        repository = path.partition("/blobs/")[0].partition("/manifests/")[0]
        if proxy.denied and self.command not in ("GET", "HEAD"):
            return 403, _describe_error("DENIED", proxy.denied), {}
        if path and proxy.repositories is not None and repository not in proxy.repositories:
            message = f"The repository with name '{repository}' does not exist in the registry"
            return 404, _describe_error("NAME_UNKNOWN", message), {}
        if proxy.refused_type and proxy.refused_type in self.headers.get("Content-Type", ""):
            return 415, _describe_error("UNSUPPORTED", "Unsupported media type of manifest"), {}
        if proxy.immutable and self.command == "PUT" and "/manifests/" in path:
            message = (
                f"The image tag '1' already exists in the '{repository}' repository and cannot be"
                " overwritten because the repository is immutable."
            )
            return 400, _describe_error("TAG_INVALID", message), {}
        return None

    def _challenge(self, kind: str) -> dict[str, str]:
        if kind == "ecr":
            value = f'Basic realm="https://{self.host}/",service="ecr.amazonaws.com"'
        else:
            place = {"azure": "oauth2/token", "google": "v2/token"}.get(kind, "token/")
            realm = self.proxy.realm or f"https://{self.host}/{place}"
            value = f'Bearer realm="{realm}",service="{self.host}"'
        return {"WWW-Authenticate": value}

    def _exchange_login(self, body: bytes) -> tuple[int, dict[str, Any]]:
        proxy = self.proxy
        if self.command == "POST":
            form = parse_qs(body.decode())
            if form.get("grant_type") != ["refresh_token"] or not form.get("service"):
                return 400, {"error": "unsupported_grant_type"}
            if form["refresh_token"][0] in proxy.refresh_tokens:
                return 200, proxy.issue_bearer()
            return 400, {"error": "invalid_grant"}
        scheme, _, value = self.headers.get("Authorization", "").partition(" ")
        if scheme == "Basic" and proxy.knows_password(value):
            return 200, proxy.issue_bearer()
        return 401, _describe_error("UNAUTHORIZED", "invalid login")

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _forward(self, address: str, body: bytes) -> int:
        connection = http.client.HTTPConnection(address, timeout=60)
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in _HOP_HEADERS or self.host in self.proxy.apis
        }
        # The registry says where an upload goes on.
        headers |= {"X-Forwarded-Proto": "https", "Content-Length": str(len(body))}
        try:
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        kept = {k: v for k, v in response.getheaders() if k.lower() not in _HOP_HEADERS}
        return self._answer(response.status, data, kept)

    def _answer(
        self, status: int, answer: bytes | dict[str, Any], headers: Mapping[str, str] = {}
    ) -> int:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response_only(status)
        sent = {"Content-Type": "application/json", "Content-Length": str(len(data))} | dict(
            headers
        )
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        return status

    def log_message(self, format: str, *args: object) -> None:
        pass


def _describe_error(code: str, message: str) -> dict[str, Any]:
    return {"errors": [{"code": code, "message": message}]}


def make_cloud_certificate(place: Path, *hosts: str) -> tuple[ssl.SSLContext, Path]:
    """Create a certificate for all hosts."""
    names = ",".join(f"DNS:{host}" for host in hosts)
    key, certificate = place / "clouds.key", place / "clouds.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=clouds", "-addext", f"subjectAltName={names}"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    return tls, certificate


@contextmanager
def serve_clouds(registry: str, tls: ssl.SSLContext, certificate: Path) -> Iterator[CloudProxy]:
    """Serve the hosts of a certificate in front of ``registry`` (host and port)."""
    proxy = CloudProxy(registry, certificate)
    handler = type("Handler", (_Handler,), {"proxy": proxy, "tls": tls})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    proxy.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_helper(directory: Path, name: str, script: str) -> Path:
    """Write the credential helper ``docker-credential-NAME`` as a shell script; return it."""
    path = directory / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
    os.chmod(path, 0o755)
    return path
