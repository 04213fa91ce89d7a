"""A build that is killed at any moment leaves no incomplete object that looks complete."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import remove_tree
from tests.e2e.conftest import Project, finish, start

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

LINES = (
    'install.apt_packages(["file", "bsdextrautils"])',
    'install.python_packages(name=["numpy", "tqdm", "six"])',
    'run(["for i in $(seq 200); do echo $i > /f$i; done", "sleep 0.2"])',
)


@pytest.fixture
def own_home(real_home: Path) -> Iterator[Path]:
    """A home that keeps its downloads, while everything built is removed."""
    home = real_home.parent / f"{real_home.name}-kill"
    yield home
    remove_tree(home)


def list_left_processes(home: Path) -> list[str]:
    """Command lines of processes that still work in ``home``."""
    results = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(home) in line:
                results.append(line)
    return results


def wait_for_nothing(home: Path) -> None:
    deadline = time.monotonic() + 60
    while list_left_processes(home):
        assert time.monotonic() < deadline, list_left_processes(home)
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("count", [30])
def test_killed_at_any_moment_the_digest_is_right(
    project: Project, own_home: Path, count: int
) -> None:
    project.write(*LINES)
    report = project.directory.parent / "report.json"
    began = time.monotonic()
    finish(start(project, own_home, "build", "--metadata-file", str(report)))
    right = json.loads(report.read_text())["image"]["config"]
    finish(start(project, own_home, "build", "--no-cache"))
    length = time.monotonic() - began
    seed = random.randrange(1 << 30)
    moments = random.Random(seed)
    for _ in range(count):
        process = start(project, own_home, "build", "--no-cache")
        try:
            process.wait(timeout=moments.uniform(0.05, max(1.0, length / 2)))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        wait_for_nothing(own_home)
        again = start(project, own_home, "build", "--metadata-file", str(report))
        finish(again)
        assert json.loads(report.read_text())["image"]["config"] == right, f"seed {seed}"
    finish(start(project, own_home, "image", "check"))


@pytest.mark.slow
def test_concurrent_builds_share_a_store(project: Project, own_home: Path) -> None:
    project.write(*LINES)
    finish(start(project, own_home, "lock"))
    reports = [project.directory.parent / f"{number}.json" for number in range(3)]
    processes = [
        start(project, own_home, "build", "--no-cache", "--metadata-file", str(report))
        for report in reports
    ]
    for process in processes:
        finish(process)
    digests = {json.loads(report.read_text())["image"]["config"] for report in reports}
    assert len(digests) == 1
    finish(start(project, own_home, "image", "check"))


def test_an_interrupt_ends_every_child_with_exit_code_130(project: Project, own_home: Path) -> None:
    project.write()
    project("build", "-t", "interrupted:1")
    project("image", "save", "interrupted:1", "-o", "base.tar")
    finish(start(project, own_home, "image", "load", "base.tar"))
    (project.directory / "danlu.lock").unlink()
    line = 'run(["echo ready-$((6 * 7)); sleep 1000"])'
    project.write(line, base='    base(image="interrupted:1")\n')
    process = start(project, own_home, "build", "--progress", "plain")
    assert process.stderr is not None
    for line in process.stderr:
        if "ready-42" in line:
            break
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    wait_for_nothing(own_home)
    assert not [
        entry for entry in Path("/proc/mounts").read_text().splitlines() if str(own_home) in entry
    ]
