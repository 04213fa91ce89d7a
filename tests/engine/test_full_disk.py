"""Environments on a disk that is full: clear errors, and everything works again afterwards."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.store import Store
from tests.conftest import Danlu, program_in
from tests.jobs.containers.engine_rig import image, paths_of
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.needs("busybox", "root"), pytest.mark.timeout(120)]


class SmallDisk:
    """A file system of 40 MB in memory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._ballast = place / "ballast"

    def fill(self) -> None:
        """Fill the disk to the last page."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def free(self) -> None:
        """Free the space again."""
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    directory = tmp_path / "disk"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", directory], check=True)
    yield SmallDisk(directory)
    subprocess.run(["umount", "--lazy", directory], check=True)


@pytest.fixture
def danlu(disk: SmallDisk) -> Iterator[Danlu]:
    """The program with its home and the image ``box:1`` on the disk."""
    home = disk.place / "home"
    digest = image(home)
    with Store.open(paths_of(home).store) as store:
        store.tag("box:1", digest)
    run = program_in(home)
    yield run
    run("down", "--grace", "0", "digits", cwd=disk.place, check=False)


def start_environment(danlu: Danlu, disk: SmallDisk) -> EnvironmentDirectory:
    danlu("up", "--image", "box:1", "-d", "-n", "digits", cwd=disk.place)
    return EnvironmentDirectory(disk.place / "home/environments/digits")


def test_programs_fail_to_start_and_the_environment_survives(danlu: Danlu, disk: SmallDisk) -> None:
    start_environment(danlu, disk)
    danlu("exec", "-n", "digits", "sh", "-c", "echo kept >/kept", cwd=disk.place)
    disk.fill()
    refused = danlu("exec", "-n", "digits", "cat", "/kept", cwd=disk.place, check=False)
    assert refused.returncode == 125
    assert "no space left on the disk that holds the environment" in refused.stderr
    assert "Running" in danlu("ps", cwd=disk.place).stdout
    disk.free()
    assert danlu("exec", "-n", "digits", "cat", "/kept", cwd=disk.place).stdout == "kept\n"


def test_the_state_is_written_once_space_is_free(danlu: Danlu, disk: SmallDisk) -> None:
    environment = start_environment(danlu, disk)
    danlu("stop", "digits", cwd=disk.place)
    disk.fill()
    started = danlu("start", "digits", cwd=disk.place, check=False)
    if started.returncode:
        # Which write fails first depends on pages that were free.
        assert "No space left" in started.stderr or "no space left" in started.stderr
        disk.free()
        danlu("start", "digits", cwd=disk.place)
    else:
        disk.free()
    wait_for(lambda: environment.read_state().phase == "Running")
    danlu("stop", "digits", cwd=disk.place)


def test_an_image_of_the_changes_needs_space(danlu: Danlu, disk: SmallDisk) -> None:
    start_environment(danlu, disk)
    danlu("exec", "-n", "digits", "sh", "-c", "echo kept >/kept", cwd=disk.place)
    disk.fill()
    refused = danlu("commit", "digits", "--tag", "kept:1", cwd=disk.place, check=False)
    assert refused.returncode == 3
    assert "no space left on the disk that holds the store" in refused.stderr
    disk.free()
    danlu("commit", "digits", "--tag", "kept:1", cwd=disk.place)
    result = danlu("run", "--image", "kept:1", "--", "cat", "/kept", cwd=disk.place)
    assert result.stdout == "kept\n"


def test_changes_that_are_larger_than_the_space_left_are_named(
    danlu: Danlu, disk: SmallDisk
) -> None:
    start_environment(danlu, disk)
    fill = "dd if=/dev/zero of=/large bs=1M count=25 2>/dev/null"
    danlu("exec", "-n", "digits", "sh", "-c", fill, cwd=disk.place)
    refused = danlu("commit", "digits", cwd=disk.place, check=False)
    assert refused.returncode == 3
    assert "no space left on the disk that holds the store" in refused.stderr
