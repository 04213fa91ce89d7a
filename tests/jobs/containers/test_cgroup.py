"""Control groups: where they are looked for, and how a program enters one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from danlu.errors import MachineError
from danlu.sandbox.launcher.cgroup import (
    CgroupManager,
    enter_script,
    group_name,
    is_stale,
    open_procs_files,
)
from danlu.sandbox.types import ResourceLimits


def process(place: Path, *, groups: str, mounts: str) -> str:
    """A directory with the cgroup files of a process, as in ``/proc``."""
    (place / "cgroup").write_text(groups)
    (place / "mountinfo").write_text(mounts)
    return str(place)


@pytest.mark.parametrize(
    ("groups", "mounts"),
    [
        ("", ""),
        ("0::/\n", "1 1 0:1 / {tree} rw - cgroup2 cgroup2 rw\n"),
        ("4:memory:/own\n", "1 1 0:1 / {tree} rw - cgroup cgroup rw,memory\n"),
    ],
)
def test_missing_cgroup_support_is_reported(tmp_path: Path, groups: str, mounts: str) -> None:
    (tmp_path / "own").mkdir()
    output = process(tmp_path, groups=groups, mounts=mounts.format(tree=tmp_path))
    result = CgroupManager.detect(output)
    assert result.missing == "no writable cgroup for cpu and memory"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cgroup", "mountinfo", "own"]
    group = result.create("mark", ResourceLimits(cpu=1, memory=1 << 30))
    with open_procs_files(group) as descriptors:
        assert (descriptors, group.usage(), group.had_oom_kill()) == ([], None, False)


def test_a_cgroup_name_identifies_its_creator() -> None:
    own = group_name("mark")
    assert own.startswith(f"danlu-{os.getpid()}.")
    assert own.endswith("-mark")
    assert not is_stale(own)
    dead = subprocess.Popen(["true"])
    dead.wait()
    assert is_stale(f"danlu-{dead.pid}.1-mark")
    assert is_stale(f"danlu-{os.getpid()}.1-mark"), "another process had the number before"
    assert is_stale(own.replace(f"-{os.getpid()}.", f"-{dead.pid}."))
    namespace = os.stat("/proc/self/ns/pid").st_ino
    other = f"danlu-{dead.pid}.1.{namespace + 1}-mark"
    assert not is_stale(other), "a process of a container has another ID here"
    assert not is_stale("docker-1.1-mark")
    assert not is_stale("danlu")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_program_enters_every_cgroup_and_closes_the_descriptors(
    tmp_path: Path, count: int
) -> None:
    files = [tmp_path / str(number) for number in range(count)]
    opening = "".join(f"exec {3 + number}>{file}; " for number, file in enumerate(files))
    script = f"{opening}{enter_script(count)}ls /proc/self/fd"
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert [file.read_text() for file in files] == ["0\n"] * count
    # The fourth is the directory that ls reads.
    assert result.stdout.split() == ["0", "1", "2", "3"]


def test_a_program_that_cannot_enter_its_cgroup_does_not_run() -> None:
    script = f"exec 3</dev/null; {enter_script(1)}echo ran"
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (125, "")


def available() -> CgroupManager:
    groups = CgroupManager.detect()
    if groups.missing:
        pytest.skip(groups.missing)
    return groups


@pytest.mark.real
@pytest.mark.needs("root")
def test_processes_in_a_cgroup_are_measured_and_limited() -> None:
    groups = available()
    group = groups.create("test", ResourceLimits(cpu=0.5, memory=32 << 20))
    try:
        glutton = "bytearray(100 << 20)"
        with open_procs_files(group) as entrances:
            moves = "".join(f"echo $$ > /proc/{os.getpid()}/fd/{fd}; " for fd in entrances)
            command = ["sh", "-c", f'{moves}exec python3 -c "{glutton}"']
            assert subprocess.run(command, check=False).returncode == -9
        used = group.usage()
        assert group.had_oom_kill()
        assert used is not None
        assert 0 < used.cpu < 10
        assert used.memory < 32 << 20
    finally:
        group.close()
        groups.close()


@pytest.mark.real
@pytest.mark.needs("root")
def test_cgroups_of_dead_supervisors_are_removed() -> None:
    script = (
        "from danlu.sandbox.launcher.cgroup import CgroupManager;"
        "from danlu.sandbox.types import ResourceLimits;"
        "from contextlib import ExitStack;"
        "import os, sys; group = CgroupManager.detect().create('test', ResourceLimits());"
        "files = group.open_procs_files(ExitStack());"
        "print(*(os.readlink(f'/proc/self/fd/{fd}') for fd in files));"
        "sys.stdout.flush(); os._exit(0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    remaining = [Path(text).parent for text in result.stdout.split()]
    groups = available()
    mine = groups.create("test", ResourceLimits())
    CgroupManager.detect().close()
    try:
        assert remaining
        assert not any(path.exists() for path in remaining)
        assert mine.usage() is not None
    finally:
        mine.close()
        groups.close()


@pytest.mark.real
@pytest.mark.needs("root")
def test_a_rejected_limit_is_an_error_and_leaves_no_cgroup() -> None:
    groups = available()
    with pytest.raises(MachineError, match="cannot set the limit"):
        groups.create("refused", ResourceLimits(cpu=1e12))
    groups.close()
