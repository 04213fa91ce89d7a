"""Wheels that are under way before the builder is loaded: the same layers, the same refusals."""

from __future__ import annotations

import shlex
from pathlib import Path

import anyio
import pytest

from danlu.builder.embedded.ahead import begun
from danlu.builder.embedded.build import solve
from danlu.builder.types import Request
from danlu.errors import ChecksumError, MachineError, OutsideError
from danlu.graph import Graph, ImageConfig, Merge, Platform, Vertex, Wheel
from danlu.sources.pypi import uv
from danlu.store import Layer
from danlu.testing.wheels import make_wheel
from tests.builder.wheels import Builder


@pytest.fixture
def calls(builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
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


def graph(*ops: Wheel) -> Graph:
    wheels = tuple(Vertex(op, (), op.name, "python") for op in ops)
    root = Vertex(Merge(), wheels, "all", "python")
    return Graph(root, ImageConfig(), Platform("linux", "amd64"), 0)


def request(builder: Builder, *, fresh: bool = False) -> Request:
    indexes = builder.project / "indexes.txt"
    indexes.write_text(f"--no-index\n--find-links {builder.links.as_uri()}\n")
    return Request(project=builder.project, fresh=fresh, requirements=(indexes,))


def build(
    builder: Builder, *ops: Wheel, begin: Graph | None = None, fresh: bool = False
) -> tuple[Layer, ...]:
    """The layers of ``ops`` where ``begin`` (what is built, if not given) was begun ahead."""
    wanted, asked = graph(*ops), request(builder, fresh=fresh)
    store, paths = builder.store, builder.paths
    with begun(begin or wanted, asked, store=store, paths=paths) as ahead:

        async def work() -> tuple[Layer, ...]:
            result, _ = await solve(
                wanted,
                asked,
                store=store,
                paths=paths,
                config=builder.config,
                progress=lambda event: None,
                ahead=ahead,
            )
            return result.stack

        return anyio.run(work)


def wheels(builder: Builder, *names: str) -> list[Wheel]:
    return [
        builder.op(make_wheel(builder.links, name, files={f"{name}.py": name})) for name in names
    ]


def test_what_was_begun_is_what_is_built_by_one_call(builder: Builder, calls: Path) -> None:
    a, b, c = wheels(builder, "a", "b", "c")
    first = build(builder, a)
    both = build(builder, a, b, c)
    assert [layer.created_by for layer in both] == ["a 1.0", "b 1.0", "c 1.0"]
    assert both[0] == first[0]
    assert len(lines(calls)) == 2
    assert builder.build(a, b, c) == list(both)  # as without: to the byte


def test_nothing_begins_where_nothing_is_missing(builder: Builder, calls: Path) -> None:
    (a,) = wheels(builder, "a")
    build(builder, a)
    calls.write_text("")
    build(builder, a)
    assert lines(calls) == []


def test_files_of_the_project_are_left_to_the_builder(builder: Builder, calls: Path) -> None:
    (a,) = wheels(builder, "a")
    local = builder.op(make_wheel(builder.project, "l", files={"l.py": ""}), "local", "")
    asked = request(builder)
    with begun(graph(a, local), asked, store=builder.store, paths=builder.paths) as ahead:
        assert ahead is None
    assert lines(calls) == []


def test_another_list_than_was_begun_is_installed_anew(builder: Builder, calls: Path) -> None:
    a, b = wheels(builder, "a", "b")
    layers = build(builder, a, b, begin=graph(a))
    assert [layer.created_by for layer in layers] == ["a 1.0", "b 1.0"]
    assert len(lines(calls)) == 2


def test_what_came_before_is_taken_from_the_cache_alone(builder: Builder, calls: Path) -> None:
    (a,) = wheels(builder, "a")
    layers = build(builder, a)
    assert build(builder, a, fresh=True) == layers
    assert ["--offline" in line for line in lines(calls)] == [False, True]


def test_a_changed_file_is_refused_once(builder: Builder, calls: Path) -> None:
    (a,) = wheels(builder, "a")
    make_wheel(builder.links, "a", files={"a.py": "changed"})
    with pytest.raises(ChecksumError):
        build(builder, a)
    assert len(lines(calls)) == 1


def test_a_lost_file_is_named(builder: Builder) -> None:
    (a,) = wheels(builder, "a")
    make_wheel(builder.links, "a", version="2.0", files={"a.py": ""})
    (builder.links / a.file).unlink()
    with pytest.raises(OutsideError, match=r"no longer have a-1\.0") as caught:
        build(builder, a)
    assert "a 2.0" in caught.value.hint


def test_what_cannot_begin_is_told_by_the_build(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (a,) = wheels(builder, "a")

    def missing() -> Path:
        raise MachineError("uv is missing")

    monkeypatch.setattr(uv, "find_uv", missing)
    with begun(graph(a), request(builder), store=builder.store, paths=builder.paths) as ahead:
        assert ahead is None
    with pytest.raises(MachineError, match="uv is missing"):
        build(builder, a)


def test_what_nobody_takes_is_killed(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (a,) = wheels(builder, "a")
    program, pid = tmp_path / "slow", tmp_path / "pid"
    program.write_text(f"#!/bin/sh\necho $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 100\n")
    program.chmod(0o755)
    monkeypatch.setattr(uv, "find_uv", lambda: program)
    with begun(graph(a), request(builder), store=builder.store, paths=builder.paths) as ahead:
        assert ahead is not None
        while not pid.exists():
            pass
        process = Path("/proc", pid.read_text().strip())
        assert process.exists()
    assert not process.exists()
    assert not list(builder.store.root.glob("tmp/*"))


def test_cancelling_waits_for_nothing(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (a,) = wheels(builder, "a")
    program = tmp_path / "slow"
    program.write_text("#!/bin/sh\nexec sleep 100\n")
    program.chmod(0o755)
    monkeypatch.setattr(uv, "find_uv", lambda: program)
    with begun(graph(a), request(builder), store=builder.store, paths=builder.paths) as ahead:
        assert ahead is not None

        async def work() -> None:
            with anyio.fail_after(0.1):
                await ahead.take([a])

        with pytest.raises(TimeoutError):
            anyio.run(work)
