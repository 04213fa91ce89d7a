"""Control groups: where they are looked for, and how a program enters one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from danlu.errors import MachineError
from danlu.jobs.local.cgroup import Groups, enter_script
from danlu.jobs.local.cgroupplaces import group_name, is_abandoned
from danlu.jobs.local.types import Limits


def process(place: Path, *, groups: str, mounts: str) -> str:
    """A directory that tells of a process's groups as the kernel does."""
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
def test_where_no_groups_can_be_made_it_is_said(tmp_path: Path, groups: str, mounts: str) -> None:
    (tmp_path / "own").mkdir()
    told = process(tmp_path, groups=groups, mounts=mounts.format(tree=tmp_path))
    found = Groups.find(told)
    assert found.missing == "no control group for cpu and memory here"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cgroup", "mountinfo", "own"]
    group = found.make("mark", Limits(cpu=1, memory=1 << 30))
    assert (group.entrances(), group.usage(), group.memory_ran_out()) == ([], None, False)


def test_a_group_says_whose_it_is() -> None:
    own = group_name("mark")
    assert own.startswith(f"danlu-{os.getpid()}.")
    assert own.endswith("-mark")
    assert not is_abandoned(own)
    dead = subprocess.Popen(["true"])
    dead.wait()
    assert is_abandoned(f"danlu-{dead.pid}.1-mark")
    assert is_abandoned(f"danlu-{os.getpid()}.1-mark"), "another process had the number before"
    assert not is_abandoned("docker-1.1-mark")
    assert not is_abandoned("danlu")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_program_enters_every_group_and_keeps_no_way_in(tmp_path: Path, count: int) -> None:
    files = [tmp_path / str(number) for number in range(count)]
    opening = "".join(f"exec {3 + number}>{file}; " for number, file in enumerate(files))
    script = f"{opening}{enter_script(count)}ls /proc/self/fd"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert [file.read_text() for file in files] == ["0\n"] * count
    # The fourth is the directory that ls reads.
    assert done.stdout.split() == ["0", "1", "2", "3"]


def test_a_program_that_cannot_enter_does_not_run() -> None:
    script = f"exec 3</dev/null; {enter_script(1)}echo ran"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (125, "")


def available() -> Groups:
    groups = Groups.find()
    if groups.missing:
        pytest.skip(groups.missing)
    return groups


@pytest.mark.real
@pytest.mark.needs("root")
def test_what_runs_in_a_group_is_measured_and_limited() -> None:
    groups = available()
    group = groups.make("test", Limits(cpu=0.5, memory=32 << 20))
    try:
        entrances = group.entrances()
        moves = "".join(f"echo $$ > /proc/{os.getpid()}/fd/{one}; " for one in entrances)
        glutton = "bytearray(100 << 20)"
        command = ["sh", "-c", f'{moves}exec python3 -c "{glutton}"']
        assert subprocess.run(command, check=False).returncode == -9
        for one in entrances:
            os.close(one)
        used = group.usage()
        assert group.memory_ran_out()
        assert used is not None
        assert 0 < used.cpu < 10
        assert used.memory < 32 << 20
    finally:
        group.close()
        groups.close()


@pytest.mark.real
@pytest.mark.needs("root")
def test_groups_of_the_dead_are_swept_and_those_of_the_living_stay() -> None:
    script = (
        "from danlu.jobs.local.cgroup import Groups; from danlu.jobs.local.types import Limits;"
        "import os, sys; groups = Groups.find(); group = groups.make('test', Limits());"
        "print(*(os.readlink(f'/proc/self/fd/{one}') for one in group.entrances()));"
        "sys.stdout.flush(); os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    left = [Path(text).parent for text in done.stdout.split()]
    groups = available()
    mine = groups.make("test", Limits())
    Groups.find().close()
    try:
        assert left
        assert not any(path.exists() for path in left)
        assert mine.usage() is not None
    finally:
        mine.close()
        groups.close()


@pytest.mark.real
@pytest.mark.needs("root")
def test_a_limit_that_the_kernel_refuses_is_told_and_nothing_is_left() -> None:
    groups = available()
    with pytest.raises(MachineError, match="could not be set"):
        groups.make("refused", Limits(cpu=1e12))
    groups.close()
