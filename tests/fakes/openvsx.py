"""An Open VSX registry over HTTP, and small extensions for it."""

from __future__ import annotations

import http.server
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def make_vsix(
    name: str, version: str, *, files: dict[str, str] | None = None, **extra: Any
) -> bytes:
    """A ``.vsix`` as vsce packs it; ``extra`` are further fields of its ``package.json``."""
    publisher, _, short = name.partition(".")
    manifest = {
        "name": short,
        "publisher": publisher,
        "version": version,
        "engines": {"vscode": "^1.60.0"},
        "main": "./main.js",
        "activationEvents": ["*"],
        **extra,
    }
    content = {
        "extension.vsixmanifest": (
            '<?xml version="1.0" encoding="utf-8"?><PackageManifest Version="2.0.0"'
            ' xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011"><Metadata>'
            f'<Identity Language="en-US" Id="{short}" Version="{version}" Publisher="{publisher}"/>'
            "</Metadata></PackageManifest>"
        ),
        "[Content_Types].xml": "<Types/>",
        "extension/package.json": json.dumps(manifest),
        "extension/main.js": "exports.activate = () => {};\n",
        **(files or {}),
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in content.items():
            archive.writestr(zipfile.ZipInfo(path, (2024, 5, 1, 12, 0, 0)), text)
    return data.getvalue()


class FakeExtensionRegistry:
    """A registry's pages by path; ``requests`` are the paths that were asked for."""

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.url = ""

    def publish(self, name: str, version: str, data: bytes, *, platform: str = "universal") -> None:
        """Add an extension; the last version that was published is the newest."""
        namespace, _, short = name.partition(".")
        root = f"api/{namespace}/{short}"
        if platform == "universal":
            file = f"{root}/{version}/file/{name}-{version}.vsix"
        else:
            file = f"{root}/{platform}/{version}/file/{name}-{version}@{platform}.vsix"
        self.pages[file] = data
        before = json.loads(self.pages.get(f"{root}/{version}", b"{}"))
        entry = {
            "namespace": namespace,
            "name": short,
            "version": version,
            "targetPlatform": platform,
            "downloads": {**before.get("downloads", {}), platform: f"{self.url}/{file}"},
            "files": {"download": f"{self.url}/{file}"},
        }
        for path in (root, f"{root}/{version}"):
            self.pages[path] = json.dumps(entry).encode()


@contextmanager
def serve_registry() -> Iterator[FakeExtensionRegistry]:
    """Serve a registry on this machine."""
    registry = FakeExtensionRegistry()

    class RegistryHandler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.lstrip("/")
            registry.requests.append(path)
            data = registry.pages.get(path)
            self.send_response(200 if data is not None else 404)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), RegistryHandler) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield registry
        server.shutdown()
        thread.join()
