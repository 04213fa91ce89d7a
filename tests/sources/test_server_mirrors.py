"""Mirrors of the servers that build files name: URLs, and files fetched from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest

from danlu.errors import ChecksumError, OutsideError, UsageError
from danlu.sources.http import FetchedFile
from danlu.sources.mirrors import fetch_from_server, replace_server
from danlu.util.config import MirrorConfig
from danlu.util.retry import RetryPolicy

MIRRORS = {
    "host.example": MirrorConfig(("https://mirror.example/host/",)),
    "host.example/data": MirrorConfig(("https://data.example", "https://second.example")),
    "files.example": MirrorConfig(("/srv/files",)),
}


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("https://host.example/a/b.csv", "https://mirror.example/host/a/b.csv"),
        ("https://host.example/a?x=1&y=2", "https://mirror.example/host/a?x=1&y=2"),
        ("https://host.example/data/b.csv", "https://data.example/b.csv"),
        ("https://host.example/database/b.csv", "https://mirror.example/host/database/b.csv"),
        ("https://user:secret@host.example/a", "https://mirror.example/host/a"),
        ("https://user:secret@other.example/a?b", "https://user:secret@other.example/a?b"),
        ("https://files.example/a%20b.csv?x=1", "file:///srv/files/a%20b.csv"),
        ("file:///host.example/a", "file:///host.example/a"),
    ],
)
def test_server_is_replaced_by_the_longest_prefix(url: str, wanted: str) -> None:
    assert replace_server(url, MIRRORS, {}) == wanted


def test_variable_replaces_a_whole_host() -> None:
    environ = {"DANLU_MIRROR_HOST_EXAMPLE": "https://own.example/x"}
    assert replace_server("https://host.example/a", MIRRORS, environ) == "https://own.example/x/a"


@pytest.mark.parametrize(
    "path", ["../passwd", "a/../../passwd", "%2e%2e/passwd", "a/.%2E/b", "a%00"]
)
def test_path_cannot_leave_a_directory_that_is_a_mirror(path: str) -> None:
    with pytest.raises(UsageError, match="invalid path"):
        replace_server(f"https://files.example/{path}", MIRRORS, {})


def fetch(
    url: str, cache: Path, mirrors: Mapping[str, MirrorConfig], sha256: str | None = None
) -> FetchedFile:
    async def run() -> FetchedFile:
        return await fetch_from_server(url, sha256, mirrors=mirrors, cache=cache)

    return anyio.run(run)


def test_file_comes_from_the_mirror(tmp_path: Path) -> None:
    (tmp_path / "mirror" / "a").mkdir(parents=True)
    (tmp_path / "mirror" / "a" / "b.csv").write_text("1,2\n")
    mirrors = {"host.invalid": MirrorConfig((str(tmp_path / "mirror"),))}
    result = fetch("https://host.invalid/a/b.csv", tmp_path / "cache", mirrors)
    assert result.path.read_text() == "1,2\n"
    with pytest.raises(ChecksumError) as caught:
        fetch("https://host.invalid/a/b.csv", tmp_path / "cache", mirrors, "0" * 64)
    assert "mirror" in caught.value.hint


def test_server_that_cannot_be_reached_names_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.sources.http._RETRY_POLICY", RetryPolicy(attempts=1))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(OutsideError) as caught:
        fetch("https://host.invalid/a", tmp_path, {})
    assert '[mirrors."host.invalid"]' in caught.value.hint
    assert "DANLU_MIRROR_HOST_INVALID" in caught.value.hint


def test_mirror_that_cannot_be_reached_is_not_proposed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.sources.http._RETRY_POLICY", RetryPolicy(attempts=1))
    mirrors = {"host.invalid": MirrorConfig(("http://127.0.0.1:1",))}
    with pytest.raises(OutsideError) as caught:
        fetch("https://host.invalid/a", tmp_path, mirrors)
    assert "127.0.0.1:1" in caught.value.message
    assert "set a mirror" not in caught.value.hint
