"""A disk that fills up during a build: one clear error, an intact store, a working next build."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import program_in
from tests.e2e.conftest import Project

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root"),
]

DECLARED = (
    'install.apt_packages(["file"])',
    'install.python_packages(name=["numpy", "six"])',
    'io.copy("data", "/data")',
)
STEP = 'run(["head -c 80000000 /dev/zero | tr \'\\\\0\' x > /big", "echo made > /made"])'
MB = 1_000_000


class SmallDisk:
    """A small file system: how much of it is free is up to the test."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._ballast = place / "ballast"

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def leave_free(self, count: int) -> None:
        """Fill the disk up to ``count`` free bytes."""
        self.free()
        status = os.statvfs(self.place)
        with self._ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize - count)

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        self.leave_free(4 * MB)
        with self._ballast.open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    directory, image = tmp_path / "disk", tmp_path / "image"
    directory.mkdir()
    with image.open("wb") as file:
        file.truncate(900 * MB)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    if subprocess.run(["mount", "-o", "loop", str(image), str(directory)], check=False).returncode:
        pytest.skip("cannot mount a loop device on this machine")
    yield SmallDisk(directory)
    subprocess.run(["umount", str(directory)], check=True)


def failed_build(small: Project) -> str:
    """Return the branch of the build that failed because the disk was full; checks the message."""
    result = small("build", "--frozen", "--progress", "plain", check=False)
    assert result.returncode == 3, result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, result.stderr
    assert errors[0].startswith("error: no space left on the disk that holds "), result.stderr
    assert "hint: free some with `danlu image prune`" in result.stderr
    small("image", "check")
    failed = re.search(r"^\[(\w+)\] .* failed after", result.stderr, re.MULTILINE)
    return failed[1] if failed else ""


@pytest.mark.slow
def test_a_build_reports_a_full_disk_at_any_point_and_continues_later(
    project: Project, disk: SmallDisk
) -> None:
    (project.directory / "data").write_bytes(bytes(5 * MB))
    project.write(*DECLARED, STEP)
    right = project.build()["image"]["config"]
    lock = project.directory / "danlu.lock"
    locked = lock.read_bytes()
    small = Project(project.directory, program_in(disk.place / "home"))
    # Downloads come to some 60 MB, what is unpacked of them to four times as much.
    branches = set()
    for megabytes in (6, 30, 70, 110, 150):
        disk.leave_free(megabytes * MB)
        branches.add(failed_build(small))
    assert "base" in branches
    disk.free()
    project.write(*DECLARED)
    small("build")
    project.write(*DECLARED, STEP)
    lock.write_bytes(locked)
    disk.leave_free(40 * MB)
    assert failed_build(small) == "steps"
    disk.free()
    assert small.build("--frozen")["image"]["config"] == right
    assert small.run("cat", "/made") == "made"
    small("image", "check")


@pytest.mark.slow
def test_a_full_disk_is_cleaned_by_pruning(project: Project, disk: SmallDisk) -> None:
    project.write('install.python_packages(name=["six"])', STEP)
    small = Project(project.directory, program_in(disk.place / "home"))
    right = small.build()["image"]["config"]
    disk.fill()
    freed = json.loads(small("image", "prune", "--all", "--format", "json").stdout)["freed"]
    assert freed > 100 * MB
    assert small.build("--frozen")["image"]["config"] == right
    small("image", "check")
