"""Wheels are prefetched while the builder is loaded: same layers, same errors."""

from __future__ import annotations

import random
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from danlu.builder.embedded import build as embedded
from danlu.builder.embedded.build import (
    list_unsolved,
    prefetch_wheels,
    preload_http_client,
    solve_graph,
)
from danlu.builder.embedded.context import SolveRequest
from danlu.environment.types import PythonPackages
from danlu.errors import ChecksumError, MachineError, OutsideError
from danlu.graph.image_config import ImageConfig
from danlu.graph.ops import HttpFile, Merge, Op, Platform, Wheel
from danlu.graph.types import Graph, Vertex
from danlu.sources.pypi import uv
from danlu.sources.pypi.uv_install import DownloadReader, WheelPrefetch
from danlu.store import Layer
from tests.builder.wheels import WheelBuilder
from tests.fakes.wheels import make_wheel


@pytest.fixture
def calls(builder: WheelBuilder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file with a line for each call of uv."""
    log, program = tmp_path / "calls", tmp_path / "uv"
    log.touch()
    real = shlex.quote(str(uv.find_uv()))
    program.write_text(f'#!/bin/sh\necho "$*" >> {log}\nexec {real} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(uv, "find_uv", lambda: program)
    return log


def lines(calls: Path) -> list[str]:
    return calls.read_text().splitlines()


def graph(*ops: Op) -> Graph:
    wheels = tuple(Vertex(op, (), op.op_name(), "python") for op in ops)
    root = Vertex(Merge(), wheels, "all", "python")
    return Graph(root, ImageConfig(), Platform("linux", "amd64"), 0)


def request(builder: WheelBuilder, *, fresh: bool = False) -> SolveRequest:
    indexes = PythonPackages(("--no-index", f"--find-links {builder.links.as_uri()}"))
    return SolveRequest(project=builder.project, fresh=fresh, python_packages=(indexes,))


@contextmanager
def prefetch(
    builder: WheelBuilder, begin: Graph, *, fresh: bool = False
) -> Iterator[WheelPrefetch | None]:
    """Start a prefetch for ``begin``."""
    with prefetch_wheels(
        list_unsolved(begin, builder.store, fresh=fresh),
        request(builder, fresh=fresh),
        store=builder.store,
        paths=builder.paths,
        config=builder.config,
    ) as ahead:
        yield ahead


def build(
    builder: WheelBuilder, *ops: Wheel, begin: Graph | None = None, fresh: bool = False
) -> tuple[Layer, ...]:
    """Build ``ops`` after a prefetch for ``begin``, by default for them; return the layers."""
    expected, asked = graph(*ops), request(builder, fresh=fresh)
    with prefetch(builder, begin or expected, fresh=fresh) as ahead:

        async def work() -> tuple[Layer, ...]:
            result, _ = await solve_graph(
                expected,
                asked,
                store=builder.store,
                paths=builder.paths,
                config=builder.config,
                progress=lambda event: None,
                prefetched=ahead,
            )
            return result.stack

        return anyio.run(work)


def wheels(builder: WheelBuilder, *names: str) -> list[Wheel]:
    return [
        builder.op(make_wheel(builder.links, name, files={f"{name}.py": name})) for name in names
    ]


def test_prefetched_wheels_are_built_with_one_uv_call(builder: WheelBuilder, calls: Path) -> None:
    a, b, c = wheels(builder, "a", "b", "c")
    first = build(builder, a)
    both = build(builder, a, b, c)
    assert [layer.created_by for layer in both] == ["a 1.0", "b 1.0", "c 1.0"]
    assert both[0] == first[0]
    assert len(lines(calls)) == 2
    assert builder.build(a, b, c) == list(both)  # as without: to the byte


@pytest.fixture
def links_address(builder: WheelBuilder) -> Iterator[str]:
    """The builder's wheels on an HTTP server."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(builder.links))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        serving.join()


def test_the_download_of_a_large_wheel_is_reported(
    builder: WheelBuilder, links_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda self, *args: None)
    builder.indexes = replace(builder.indexes, find_links=(links_address,))
    text = random.Random(1).randbytes(3 << 20)  # does not compress
    large = builder.op(make_wheel(builder.links, "large", files={"large.bin": text}))
    builder.build(large, *wheels(builder, "small"))
    assert len(builder.transfers) == 2
    (begun, total), end = builder.transfers
    assert (begun, end) == (0, (total, total))
    assert total == pytest.approx((builder.links / large.file).stat().st_size, rel=0.05)


def test_messages_of_uv_are_read_in_any_parts() -> None:
    text = "Downloading torch (182.9MiB)\nDownloading x (1.5MiB)\n Downloaded torch\nPrepared 2\n"
    for size in (1, 7, len(text)):
        reported: list[tuple[str, int, int]] = []
        reader = DownloadReader(lambda *fields, to=reported: to.append(fields))
        for start in range(0, len(text), size):
            reader.read(text[start : start + size])
        torch = 191784550
        assert reported == [("torch", 0, torch), ("x", 0, 1572864), ("torch", torch, torch)]


def test_no_prefetch_if_nothing_is_missing(builder: WheelBuilder, calls: Path) -> None:
    (a,) = wheels(builder, "a")
    build(builder, a)
    calls.write_text("")
    build(builder, a)
    assert lines(calls) == []


def test_no_prefetch_for_files_of_the_project(builder: WheelBuilder, calls: Path) -> None:
    (a,) = wheels(builder, "a")
    local = builder.op(make_wheel(builder.project, "l", files={"l.py": ""}), "local", "")
    with prefetch(builder, graph(a, local)) as ahead:
        assert ahead is None
    assert lines(calls) == []


def test_different_wheels_than_prefetched_are_installed_again(
    builder: WheelBuilder, calls: Path
) -> None:
    a, b = wheels(builder, "a", "b")
    layers = build(builder, a, b, begin=graph(a))
    assert [layer.created_by for layer in layers] == ["a 1.0", "b 1.0"]
    assert len(lines(calls)) == 2


def test_cached_wheels_are_not_fetched(builder: WheelBuilder, calls: Path) -> None:
    (a,) = wheels(builder, "a")
    layers = build(builder, a)
    assert build(builder, a, fresh=True) == layers
    assert ["--offline" in line for line in lines(calls)] == [False, True]


def test_a_changed_file_is_refused_once(builder: WheelBuilder, calls: Path) -> None:
    (a,) = wheels(builder, "a")
    make_wheel(builder.links, "a", files={"a.py": "changed"})
    with pytest.raises(ChecksumError):
        build(builder, a)
    assert len(lines(calls)) == 1


def test_a_lost_file_is_named(builder: WheelBuilder) -> None:
    (a,) = wheels(builder, "a")
    make_wheel(builder.links, "a", version="2.0", files={"a.py": ""})
    (builder.links / a.file).unlink()
    with pytest.raises(OutsideError, match=r"no longer have the locked file a-1\.0") as caught:
        build(builder, a)
    assert "a 2.0" in caught.value.hint


def test_prefetch_failure_is_reported_by_the_build(
    builder: WheelBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = wheels(builder, "a")

    def missing() -> Path:
        raise MachineError("uv is missing")

    monkeypatch.setattr(uv, "find_uv", missing)
    with prefetch(builder, graph(a)) as ahead:
        assert ahead is None
    with pytest.raises(MachineError, match="uv is missing"):
        build(builder, a)


def test_unused_prefetch_is_killed(
    builder: WheelBuilder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (a,) = wheels(builder, "a")
    program, pid = tmp_path / "slow", tmp_path / "pid"
    program.write_text(f"#!/bin/sh\necho $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 100\n")
    program.chmod(0o755)
    monkeypatch.setattr(uv, "find_uv", lambda: program)
    with prefetch(builder, graph(a)) as ahead:
        assert ahead is not None
        while not pid.exists():
            pass
        process = Path("/proc", pid.read_text().strip())
        assert process.exists()
    assert not process.exists()
    assert not list(builder.store.root.glob("tmp/*"))


def test_cancelling_does_not_wait_for_the_prefetch(
    builder: WheelBuilder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (a,) = wheels(builder, "a")
    program = tmp_path / "slow"
    program.write_text("#!/bin/sh\nexec sleep 100\n")
    program.chmod(0o755)
    monkeypatch.setattr(uv, "find_uv", lambda: program)
    with prefetch(builder, graph(a)) as ahead:
        assert ahead is not None

        async def work() -> None:
            with anyio.fail_after(0.1):
                await ahead.take([a], lambda name, current, total: None)

        with pytest.raises(TimeoutError):
            anyio.run(work)


@pytest.mark.parametrize(
    ("is_downloaded", "offline", "loaded"),
    [(False, False, True), (True, False, False), (False, True, False)],
)
def test_http_client_is_loaded_ahead_only_if_a_file_must_be_downloaded(
    builder: WheelBuilder,
    monkeypatch: pytest.MonkeyPatch,
    is_downloaded: bool,
    offline: bool,
    loaded: bool,
) -> None:
    started: list[str] = []
    monkeypatch.setattr(embedded, "preload_client", lambda: started.append("thread"))
    file = HttpFile(url="https://data.invalid/x", sha256="0" * 64, target="/x", epoch=0)
    if is_downloaded:
        cached = builder.paths.cache / "http" / "sha256" / file.sha256
        cached.parent.mkdir(parents=True)
        cached.touch()
    asked = SolveRequest(project=builder.project, offline=offline)
    preload_http_client(list_unsolved(graph(file), builder.store), asked, builder.paths)
    assert bool(started) is loaded
    preload_http_client(list_unsolved(graph(), builder.store), asked, builder.paths)
    assert bool(started) is loaded
