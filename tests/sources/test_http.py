"""HTTP files: downloaded once, verified, resumed, and retried where that can help."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import pytest

from danlu.errors import ChecksumError, OutsideError, TemporaryError, UsageError
from danlu.sources import http
from danlu.sources.http import FetchedFile, _limit_transfers, fetch
from danlu.util.retry import RetryPolicy

BODY = bytes(range(256)) * 4096
SHA = hashlib.sha256(BODY).hexdigest()


class ScriptedServer(ThreadingHTTPServer):
    """Serves :data:`BODY`; ``plan`` is the kind of answer to each request in turn."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ScriptedHandler)
        self.plan: list[str] = []
        self.requests: list[dict[str, str]] = []
        self.etag = '"one"'
        self.is_closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file.bin"


class ScriptedHandler(BaseHTTPRequestHandler):
    server: ScriptedServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.requests.append({name.lower(): text for name, text in self.headers.items()})
        how = self.server.plan.pop(0) if self.server.plan else "whole"
        if how.isdigit():
            self.send_error(int(how))
            return
        start = 0
        expected = self.headers.get("Range", "")
        if expected and how != "ignore":
            start = int(expected.removeprefix("bytes=").rstrip("-"))
            start += {"later": 1, "earlier": -1}.get(how, 0)
            self.send_response(206)
            if how != "unsaid":
                self.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(BODY) - start))
        if self.server.etag:
            self.send_header("ETag", self.server.etag)
        self.end_headers()
        if how == "drip":
            for byte in BODY[start:]:
                self.wfile.write(bytes([byte]))
                if self.server.is_closing.wait(0.01):
                    return
        self.wfile.write(BODY[start : len(BODY) // 2 if how == "half" else None])


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    monkeypatch.setattr(http, "_RETRY_POLICY", RetryPolicy(attempts=4, initial_delay=0.001))
    server = ScriptedServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.is_closing.set()
    server.shutdown()
    thread.join()
    server.server_close()


def get(url: str, sha256: str | None, cache: Path, *, offline: bool = False) -> FetchedFile:
    async def run() -> FetchedFile:
        return await fetch(url, sha256, cache=cache, offline=offline, environ={})

    return anyio.run(run)


def test_a_file_is_fetched_once(server: ScriptedServer, tmp_path: Path) -> None:
    first = get(server.url, SHA, tmp_path)
    assert (first.path.read_bytes(), first.sha256, first.size) == (BODY, SHA, len(BODY))
    assert get(server.url, f"sha256:{SHA}", tmp_path, offline=True) == first
    assert len(server.requests) == 1


def test_a_file_without_a_hash_is_requested_again(server: ScriptedServer, tmp_path: Path) -> None:
    assert get(server.url, None, tmp_path).sha256 == SHA
    assert get(server.url, None, tmp_path).sha256 == SHA
    assert len(server.requests) == 2


def test_other_bytes_are_a_checksum_error_and_not_kept(
    server: ScriptedServer, tmp_path: Path
) -> None:
    with pytest.raises(ChecksumError, match="checksum mismatch"):
        get(server.url, "0" * 64, tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size]


def test_a_broken_transfer_is_resumed(server: ScriptedServer, tmp_path: Path) -> None:
    server.plan = ["half", "whole"]
    assert get(server.url, SHA, tmp_path).size == len(BODY)
    assert server.requests[1]["range"].startswith("bytes=")
    assert server.requests[1]["if-range"] == '"one"'


def test_a_transfer_byte_by_byte_is_resumed(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_READ_TIMEOUT", 0.2)
    server.plan = ["drip"]
    assert get(server.url, SHA, tmp_path).path.read_bytes() == BODY
    assert server.requests[1]["range"] != "bytes=0-"


def test_a_server_that_sends_byte_by_byte_is_given_up(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_READ_TIMEOUT", 0.2)
    server.plan = ["drip"] * 99
    with pytest.raises(TemporaryError, match="is too slow: less than 64 KiB"):
        get(server.url, SHA, tmp_path)
    assert len(server.requests) == 4


@pytest.mark.parametrize("how", ["later", "earlier", "unsaid"])
@pytest.mark.parametrize("sha256", [SHA, None])
def test_a_range_other_than_requested_is_rejected(
    server: ScriptedServer, tmp_path: Path, how: str, sha256: str | None
) -> None:
    server.plan = ["half", how, "whole"]
    assert get(server.url, sha256, tmp_path).sha256 == SHA
    assert "range" not in server.requests[2]


@pytest.mark.parametrize("etag", ['W/"one"', ""])
def test_transfer_without_a_strong_validator_starts_again(
    server: ScriptedServer, tmp_path: Path, etag: str
) -> None:
    server.etag = etag
    server.plan = ["half", "whole"]
    assert get(server.url, SHA, tmp_path).sha256 == SHA
    assert "range" not in server.requests[1]


def test_a_server_that_cannot_resume_starts_again(server: ScriptedServer, tmp_path: Path) -> None:
    server.plan = ["half", "ignore"]
    assert get(server.url, SHA, tmp_path).sha256 == SHA


def test_a_busy_server_is_retried(server: ScriptedServer, tmp_path: Path) -> None:
    server.plan = ["503", "429", "whole"]
    assert get(server.url, SHA, tmp_path).sha256 == SHA


def test_a_busy_server_is_a_temporary_error(server: ScriptedServer, tmp_path: Path) -> None:
    server.plan = ["503"] * 10
    with pytest.raises(TemporaryError, match="503"):
        get(server.url, SHA, tmp_path)
    assert len(server.requests) == 4


def test_a_permanent_error_is_not_retried(server: ScriptedServer, tmp_path: Path) -> None:
    server.plan = ["404"] * 3
    with pytest.raises(OutsideError, match="404") as caught:
        get(server.url, SHA, tmp_path)
    assert not isinstance(caught.value, TemporaryError)
    assert len(server.requests) == 1


def test_offline_makes_no_request(server: ScriptedServer, tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="offline"):
        get(server.url, SHA, tmp_path, offline=True)
    assert not server.requests


def test_credentials_are_in_no_message(server: ScriptedServer, tmp_path: Path) -> None:
    server.plan = ["401"]
    with pytest.raises(OutsideError) as caught:
        get(server.url.replace("//", "//user:hunter2@"), SHA, tmp_path)
    assert "hunter2" not in caught.value.message


def test_local_addresses_work_and_others_do_not(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(BODY)
    assert get((tmp_path / "a b").as_uri(), SHA, tmp_path / "c").size == len(BODY)
    with pytest.raises(UsageError, match="ftp"):
        get("ftp://h/x", None, tmp_path / "c")


def test_transfers_of_one_event_loop_share_a_limit() -> None:
    async def limiters() -> list[anyio.CapacityLimiter]:
        return [_limit_transfers(), _limit_transfers()]

    first, second = anyio.run(limiters)
    assert first is second
    assert first.total_tokens < 20
    assert anyio.run(limiters)[0] is not first
