"""Platforms: which can be named, how a lock holds several, and which vertices are foreign."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from danlu.assemble.assemble import assemble
from danlu.builder.embedded.build import find_foreign_step, list_unsolved
from danlu.environment.lock import FunctionLock, Lock, LockedBase, LockedSystem
from danlu.environment.types import BaseSystem, Environment
from danlu.errors import MachineError, UsageError
from danlu.graph.ops import DebPackage, Platform, parse_platform
from danlu.project.build import build_project
from danlu.project.build_request import (
    BuildOptions,
    BuildRequest,
    choose_platform,
    choose_platforms,
)
from danlu.resolve.lockfile import read_lock, write_lock
from danlu.sandbox import emulation
from danlu.store import Store

AMD64, ARM64 = Platform(), Platform(architecture="arm64")


def make_section(platform: Platform, *, epoch: int = 1) -> FunctionLock:
    architecture = platform.architecture
    debs = [
        DebPackage(name, "1", architecture, digit * 64, 7, "bookworm", f"pool/{name}.deb")
        for name, digit in (("dpkg", "a"), ("git", "b"))
    ]
    base = LockedBase("i", epoch, "debian", "bookworm", "glibc 2.36", packages=(debs[0],))
    return FunctionLock(str(platform), base, system=LockedSystem("s", (debs[1],), ("git",)))


@pytest.mark.parametrize(
    ("text", "platforms"),
    [
        ("linux/arm64", (ARM64,)),
        ("linux/arm64/v8", (ARM64,)),
        ("linux/amd64,linux/arm64", (AMD64, ARM64)),
        ("linux/arm64, linux/arm64/v8", (ARM64,)),
    ],
)
def test_platforms_are_read_in_docker_s_spelling(
    text: str, platforms: tuple[Platform, ...]
) -> None:
    assert choose_platforms(text) == platforms


@pytest.mark.parametrize(
    "text", ["arm64", "windows/amd64", "linux/", "linux/arm64/v8/x", "linux/s390x/z", ",", "linux"]
)
def test_platform_that_cannot_be_built_is_refused_with_those_that_can(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose_platforms(text)
    assert "linux/amd64" in caught.value.hint


def test_plan_takes_one_platform() -> None:
    with pytest.raises(UsageError, match="expected one platform"):
        choose_platform("linux/amd64,linux/arm64")


def test_second_platform_leaves_the_first_section_of_a_lock_byte_for_byte() -> None:
    first = Lock({"build": make_section(AMD64)})
    both = first.replace_function("build", make_section(ARM64))
    assert write_lock(both).startswith(write_lock(first))
    assert read_lock(write_lock(both), "danlu.lock") == both
    assert both.list_platforms("build") == (AMD64, ARM64)
    assert both.find("build", ARM64) == make_section(ARM64)
    again = both.replace_function("build", make_section(ARM64, epoch=2))
    assert again.find("build", AMD64) == make_section(AMD64)
    assert sorted(again.functions) == ["build", "build@linux/arm64"]


def test_platform_that_is_not_locked_is_not_taken_from_another() -> None:
    lock = Lock({"build": make_section(ARM64)})
    assert lock.find("build", AMD64) is None
    assert lock.find("other", ARM64) is None
    assert lock.replace_function("build", make_section(AMD64)).find("build", ARM64)


def test_only_the_tools_of_a_foreign_build_are_executed(tmp_path: Path) -> None:
    environment = Environment(name="build", file="build.envd", base=BaseSystem(os="debian12"))
    graph = assemble(environment, make_section(ARM64), platform=ARM64, tools=make_section(AMD64))
    kinds = sorted(vertex.op.op_name() for vertex in graph.walk() if vertex.op.runs_programs)
    assert kinds == ["AptInstall", "Bootstrap"]
    assert {"ForeignAptInstall", "ForeignBootstrap"} < {v.op.op_name() for v in graph.walk()}
    untooled = assemble(environment, make_section(ARM64), platform=ARM64)
    with Store.open(tmp_path / "store") as store:
        assert find_foreign_step(graph, list_unsolved(graph, store)) is None
        vertex = find_foreign_step(untooled, list_unsolved(untooled, store))
    assert vertex is not None
    assert vertex.op.op_name() == "AptInstall"


def test_own_platform_has_the_same_graph_as_without_platforms() -> None:
    environment = Environment(name="build", file="build.envd", base=BaseSystem(os="debian12"))
    section = make_section(AMD64)
    assert (
        assemble(environment, section).digest
        == assemble(environment, section, platform=AMD64).digest
    )


def test_programs_of_an_unknown_processor_are_refused_with_the_remedy() -> None:
    with pytest.raises(
        MachineError, match="run make executes programs for linux/riscv64"
    ) as caught:
        emulation.require_emulation(Platform(architecture="riscv64"), "run make")
    assert caught.value.exit_code == 4
    assert "qemu-user-static" in caught.value.hint


def test_probe_program_of_this_machine_is_executed() -> None:
    assert emulation._executes_programs(emulation.host_platform().architecture)
    emulation.require_emulation(emulation.host_platform(), "anything")


def test_interpreter_without_the_fixed_flag_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emulation, "_BINFMT_MISC", tmp_path)
    (tmp_path / "qemu-a").write_text("enabled\ninterpreter /usr/bin/qemu\nflags: OC\n")
    (tmp_path / "qemu-b").write_text("enabled\ninterpreter /usr/bin/qemu\nflags: POCF\n")
    assert emulation._lacks_fixed_interpreter("qemu-a")
    assert not emulation._lacks_fixed_interpreter("qemu-b")
    assert not emulation._lacks_fixed_interpreter("qemu-unregistered")


def test_variant_of_arm_is_its_own_platform() -> None:
    assert str(parse_platform("linux/arm/v7")) == "linux/arm/v7"
    assert replace(ARM64, variant="v9") != ARM64


def test_name_does_not_move_before_all_platforms_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[str, ...]] = []

    @contextmanager
    def build_one(request: BuildRequest) -> Iterator[tuple[Any, Any]]:
        moved.append(request.options.tags)
        if request.options.platform == str(ARM64):
            raise UsageError("cannot build")
        yield None, None

    monkeypatch.setattr("danlu.project.build.find_or_build", build_one)
    options = BuildOptions(tags=("demo:1",), platform=f"{AMD64},{ARM64}")
    nothing: Any = None
    with pytest.raises(UsageError, match="cannot build"):
        build_project(nothing, settings=nothing, options=options, progress=nothing)
    assert moved == [(), ()]
