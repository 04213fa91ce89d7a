"""Files of ``io.http`` in the lock: a declared checksum counts, whatever is locked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from danlu.environment.lock import LockedBase
from danlu.errors import OutsideError, ResolveError, Span
from danlu.lang.functions.steps import HTTP_FILES, CopyStep, HttpStep, LockedHttp, RunStep
from tests.resolve.section_locker import DistributionSources, SectionLocker

OLD, NEW = (hashlib.sha256(content).hexdigest() for content in (b"old", b"new"))
SPAN = Span("build.envd", 3)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "served").mkdir()
    (tmp_path / "served/data").write_bytes(b"new")
    handler = partial(QuietHandler, directory=tmp_path / "served")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/data"
        server.shutdown()


def lock_files(
    place: Path, *steps: HttpStep, pins: tuple[LockedHttp, ...] = ()
) -> tuple[LockedHttp, ...]:
    locker = SectionLocker(place, {})
    environment = replace(locker.environment(), steps=steps)
    sources: Any = DistributionSources(environment, LockedBase("", 0), locker.context)  # type: ignore[arg-type]
    result = anyio.run(HTTP_FILES.resolve, environment, pins, sources)
    assert not HTTP_FILES.is_stale(environment, result)
    return result


def declare_file(url: str, sha256: str = "") -> HttpStep:
    return HttpStep(url, f"sha256:{sha256}" if sha256 else "", span=SPAN)


def is_stale(place: Path, step: HttpStep, pin: LockedHttp) -> bool:
    environment = replace(SectionLocker(place, {}).environment(), steps=(step,))
    return HTTP_FILES.is_stale(environment, (pin,))


def test_a_lock_with_another_checksum_than_the_build_file_is_stale(tmp_path: Path) -> None:
    pin = LockedHttp("https://h/data", OLD, 3)
    assert is_stale(tmp_path, declare_file(pin.url, NEW), pin)
    assert not is_stale(tmp_path, declare_file(pin.url, OLD), pin)
    assert not is_stale(tmp_path, declare_file(pin.url), pin)


def test_other_steps_do_not_make_the_lock_of_files_stale(tmp_path: Path) -> None:
    pin = LockedHttp("https://h/data", OLD, 3)
    steps = (RunStep(("make",)), declare_file(pin.url), CopyStep("a", "/b"))
    environment = replace(SectionLocker(tmp_path, {}).environment(), steps=steps)
    assert not HTTP_FILES.is_stale(environment, (pin,))


def test_a_new_checksum_is_verified_and_replaces_the_locked_file(tmp_path: Path, url: str) -> None:
    pins = (LockedHttp(url, OLD, 3),)
    assert lock_files(tmp_path, declare_file(url, NEW), pins=pins) == (LockedHttp(url, NEW, 3),)
    with pytest.raises(OutsideError, match="checksum mismatch"):
        lock_files(tmp_path, declare_file(url, OLD))


@pytest.mark.parametrize("hashes", [("", OLD), (OLD, "")])
def test_a_checksum_counts_for_each_step_with_the_url(
    tmp_path: Path, url: str, hashes: tuple[str, str]
) -> None:
    with pytest.raises(OutsideError, match="checksum mismatch"):
        lock_files(tmp_path, *(declare_file(url, sha256) for sha256 in hashes))


def test_two_checksums_for_one_url_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ResolveError, match="two checksums") as caught:
        lock_files(tmp_path, declare_file(url, NEW), declare_file(url, OLD))
    assert caught.value.span == SPAN
