"""The Hugging Face Hub over HTTP: what its client needs to download a repository."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Repositories by path (``datasets/OWNER/NAME``, ``models/OWNER/NAME``) and file.

    With a ``token`` every request needs it. ``status`` is the answer to all of them instead, and
    after ``silent`` is set none is answered until it is cleared. ``requests`` are their paths.
    """

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repositories = repositories
        self.token = ""
        self.status = 0
        self.silent = False
        self.answering = threading.Condition()
        self.requests: list[str] = []
        self.url = ""

    def find_answer(self, path: str) -> tuple[int, bytes, dict[str, str]]:
        """Return the status, the body and the headers of the answer to a request."""
        kind, name, action, rest = _split_path(path)
        files = self.repositories.get(f"{kind}/{name}")
        if path == "/api/whoami-v2":
            return _json_answer({"name": "reader", "type": "user", "auth": {"accessToken": {}}})
        if files is None:
            return 404, b"{}", {"X-Error-Code": "RepoNotFound"}
        if action == "resolve":
            file = rest.partition("/")[2]
            if file not in files:
                return 404, b"{}", {"X-Error-Code": "EntryNotFound"}
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{_hash_blob(files[file])}"'}
            return 200, files[file], headers
        if action == "tree":
            entries = [
                {"type": "file", "path": file, "size": len(data), "oid": _hash_blob(data)}
                for file, data in files.items()
            ]
            return _json_answer(entries)
        siblings = [{"rfilename": file} for file in files]
        info = {"id": name, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}
        return _json_answer(info)


def _split_path(path: str) -> tuple[str, str, str, str]:
    """Return the kind and name of the repository in a path, what is asked, and the rest."""
    is_api = path.startswith("/api/")
    parts = path.removeprefix("/api/").strip("/").split("/")
    kind = parts.pop(0) if is_api or parts[0] in ("datasets", "models") else "models"
    return kind, "/".join(parts[:2]), "".join(parts[2:3]), "/".join(parts[3:])


def _hash_blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%s" % (len(data), data)).hexdigest()


def _json_answer(value: Any) -> tuple[int, bytes, dict[str, str]]:
    return 200, json.dumps(value).encode(), {"Content-Type": "application/json"}


@contextmanager
def serve_hub(hub: FakeHub, host: str = "127.0.0.1") -> Iterator[FakeHub]:
    """Serve the hub within the block; its address is ``hub.url`` (``HF_ENDPOINT``)."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(path)
            with hub.answering:
                hub.answering.wait_for(lambda: not hub.silent)
            allowed = not hub.token or self.headers["Authorization"] == f"Bearer {hub.token}"
            status, body, headers = hub.find_answer(path)
            if hub.status or not allowed:
                status, body, headers = hub.status or 401, b"{}", {}
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    # A client that was stopped has closed its connection.
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    hub.url = f"http://{host}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        with hub.answering:
            hub.silent = False
            hub.answering.notify_all()
        server.shutdown()
        server.server_close()
        thread.join()
