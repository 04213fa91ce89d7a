"""The project's copy in a pod: both ways, incremental, and without losing a version."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.engine.kubernetes.pod import EnvironmentPod
from danlu.engine.kubernetes.project_copy import FetchReport, PodProjectCopy

pytestmark = pytest.mark.anyio

LONG = "deep/" * 20 + "file-with-a-name-of-more-than-a-hundred-bytes-together-with-its-directory"


class ProjectCopies:
    """A project, and a directory in place of the one in the pod."""

    def __init__(self, tmp_path: Path, pod: EnvironmentPod) -> None:
        self.here, self.there = tmp_path / "here", tmp_path / "there"
        self.here.mkdir()
        self.there.mkdir()
        self._records = tmp_path / "records"
        self._pod = pod

    def copy(self, volume: str = "one") -> PodProjectCopy:
        """The copy, as a supervisor that has just started sees it."""
        return PodProjectCopy(
            self._pod, self.here, self._records, volume=volume, directory=str(self.there)
        )

    def change_there(self, name: str, text: str) -> None:
        path = self.there / name
        path.write_text(text)
        # Times of a pod's files are compared in seconds.
        os.utime(path, (1, 1))


@pytest.fixture
def sides(tmp_path: Path, pod: EnvironmentPod) -> ProjectCopies:
    return ProjectCopies(tmp_path, pod)


async def test_files_are_copied_in_both_directions(sides: ProjectCopies) -> None:
    (sides.here / LONG).parent.mkdir(parents=True)
    (sides.here / LONG).write_text("long")
    (sides.here / "run.sh").write_text("#!/bin/sh\n")
    (sides.here / "run.sh").chmod(0o755)
    (sides.here / "link").symlink_to("run.sh")
    (sides.here / "empty").mkdir()
    copy = sides.copy()
    assert await copy.send_changes() == ()
    assert (sides.there / LONG).read_text() == "long"
    assert os.access(sides.there / "run.sh", os.X_OK)
    assert os.readlink(sides.there / "link") == "run.sh"
    assert (sides.there / "empty").is_dir()
    assert await copy.fetch_changes() == FetchReport()
    sides.change_there("made here and there", "made")
    sides.change_there("run.sh", "changed")
    assert await copy.fetch_changes() == FetchReport()
    assert (sides.here / "made here and there").read_text() == "made"
    assert (sides.here / "run.sh").read_text() == "changed"


async def test_only_what_changed_is_sent(sides: ProjectCopies) -> None:
    (sides.here / "same").write_text("same")
    (sides.here / "other").write_text("1")
    await sides.copy().send_changes()
    (sides.there / "same").unlink()
    (sides.here / "other").write_text("22")
    await sides.copy().send_changes()
    # It was removed there on purpose.
    assert sorted(path.name for path in sides.there.iterdir()) == ["other"]
    assert (sides.there / "other").read_text() == "22"


async def test_a_new_volume_gets_everything_again(sides: ProjectCopies) -> None:
    (sides.here / "data").write_text("data")
    await sides.copy().send_changes()
    (sides.there / "data").unlink()
    await sides.copy(volume="two").send_changes()
    assert (sides.there / "data").read_text() == "data"


async def test_local_removal_is_applied_unless_the_remote_file_changed(
    sides: ProjectCopies,
) -> None:
    for name in ("gone", "changed"):
        (sides.here / name).write_text("text")
    copy = sides.copy()
    await copy.send_changes()
    sides.change_there("changed", "by a program")
    for name in ("gone", "changed"):
        (sides.here / name).unlink()
    await copy.send_changes()
    assert sorted(path.name for path in sides.there.iterdir()) == ["changed"]


async def test_both_versions_of_a_conflict_are_kept(sides: ProjectCopies) -> None:
    for name in ("sent", "fetched"):
        (sides.here / name).write_text("before")
    copy = sides.copy()
    await copy.send_changes()
    sides.change_there("fetched", "there")
    (sides.here / "fetched").write_text("here!!")
    assert (await copy.fetch_changes()).conflicts == ("fetched",)
    assert (sides.here / "fetched").read_text() == "here!!"
    assert (sides.here / "fetched.remote").read_text() == "there"
    sides.change_there("sent", "there")
    (sides.here / "sent").write_text("here!!")
    assert "sent" in await copy.send_changes()
    assert (sides.there / "sent").read_text() == "here!!"
    assert (sides.there / "sent.remote").read_text() == "there"


async def test_ignored_files_are_not_copied(sides: ProjectCopies) -> None:
    (sides.here / ".danluignore").write_text("data/\n*.log\n")
    (sides.here / "data").mkdir()
    (sides.here / "data/big").write_text("big")
    copy = sides.copy()
    await copy.send_changes()
    assert not (sides.there / "data").exists()
    (sides.there / "data").mkdir()
    sides.change_there("data/made", "made")
    sides.change_there("run.log", "log")
    (sides.there / ".git").mkdir()
    sides.change_there(".git/config", "made")
    await copy.fetch_changes()
    assert sorted(path.name for path in sides.here.iterdir()) == [".danluignore", "data"]
    assert [path.name for path in (sides.here / "data").iterdir()] == ["big"]


async def test_a_hostile_pod_writes_nothing_outside(sides: ProjectCopies, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (sides.here / "out").symlink_to(outside)
    copy = sides.copy()
    await copy.send_changes()
    (sides.there / "out").unlink()
    (sides.there / "out").mkdir()
    sides.change_there("out/file", "hostile")
    sides.change_there("a\nb", "two lines")
    sides.change_there("-rf", "an option")
    assert (await copy.fetch_changes()).skipped == ("out/file",)
    assert list(outside.iterdir()) == []
    assert sorted(path.name for path in sides.here.iterdir()) == ["-rf", "out"]


async def test_a_directory_takes_the_place_of_a_file_and_back(sides: ProjectCopies) -> None:
    (sides.here / "a").write_text("file")
    (sides.here / "b").mkdir()
    (sides.here / "b/inner").write_text("inner")
    copy = sides.copy()
    await copy.send_changes()
    (sides.here / "a").unlink()
    (sides.here / "a").mkdir()
    (sides.here / "a/inner").write_text("inner")
    (sides.here / "b/inner").unlink()
    (sides.here / "b").rmdir()
    (sides.here / "b").write_text("file")
    await copy.send_changes()
    assert (sides.there / "a/inner").read_text() == "inner"
    assert (sides.there / "b").read_text() == "file"


async def test_names_are_bytes(sides: ProjectCopies) -> None:
    name = os.fsdecode(b"caf\xe9 \\ -x")
    (sides.here / name).write_text("1")
    await sides.copy().send_changes()
    assert (sides.there / name).read_text() == "1"
    sides.change_there(name, "22")
    await sides.copy().fetch_changes()
    assert (sides.here / name).read_text() == "22"
