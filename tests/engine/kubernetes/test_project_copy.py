"""The project's copy in a pod: both ways, incremental, and without losing a version."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from anyio import from_thread

from danlu.engine.kubernetes.pod import EnvironmentPod
from danlu.engine.kubernetes.program import PodShell, run_in_thread
from danlu.project_sync.project_copy import ProjectCopy
from danlu.project_sync.types import CopyPlace, SyncReport
from tests.fakes.pod_streams import PodStreamsServer

pytestmark = pytest.mark.anyio


class ProjectCopies:
    """A project, and a directory in place of the one in the pod."""

    def __init__(self, tmp_path: Path, pod: EnvironmentPod) -> None:
        self.here, self.there = tmp_path / "here", tmp_path / "there"
        self.here.mkdir()
        self.there.mkdir()
        self._records = tmp_path / "records"
        self._pod = pod

    def copy(self, volume: str = "one") -> ProjectCopy:
        """The copy, as a supervisor that has just started sees it."""
        place = CopyPlace(str(self.there), f"{self.there}/.danlu-sync", volume)
        return ProjectCopy(PodShell(self._pod), self.here, self._records, place)

    async def send(self, volume: str = "one") -> SyncReport:
        return await run_in_thread(self.copy(volume).send_changes)

    async def fetch(self) -> SyncReport:
        return await run_in_thread(self.copy().fetch_changes)


@pytest.fixture
def sides(tmp_path: Path, pod: EnvironmentPod) -> ProjectCopies:
    return ProjectCopies(tmp_path, pod)


async def test_files_are_copied_in_both_directions(sides: ProjectCopies) -> None:
    (sides.here / "run.sh").write_text("#!/bin/sh\n")
    (sides.here / "run.sh").chmod(0o750)
    (sides.here / "link").symlink_to("run.sh")
    assert await sides.send() == SyncReport(copied=["link", "run.sh"])
    assert (sides.there / "run.sh").stat().st_mode & 0o777 == 0o750
    assert os.readlink(sides.there / "link") == "run.sh"
    assert await sides.fetch() == SyncReport()
    (sides.there / "made here and there").write_text("made" * 100_000)
    (sides.there / "run.sh").write_text("changed")
    assert (await sides.fetch()).copied == ["made here and there", "run.sh"]
    assert (sides.here / "made here and there").read_text() == "made" * 100_000
    assert (sides.here / "run.sh").read_text() == "changed"


async def test_nothing_is_asked_if_nothing_was_changed_here(
    sides: ProjectCopies, server: PodStreamsServer
) -> None:
    (sides.here / "a").write_text("a")
    await sides.send()
    server.queries.clear()
    assert await sides.send() == SyncReport()
    assert server.queries == []


async def test_a_new_volume_gets_everything_again(sides: ProjectCopies) -> None:
    (sides.here / "data").write_text("data")
    await sides.send()
    (sides.there / "data").unlink()
    await sides.send("two")
    assert (sides.there / "data").read_text() == "data"


async def test_a_copy_can_be_cancelled_while_a_script_runs() -> None:
    with anyio.CancelScope() as scope:
        await run_in_thread(lambda: from_thread.run(wait_after, scope.cancel))
    assert scope.cancelled_caught


async def wait_after(cancel: Callable[[], None]) -> None:
    cancel()
    await anyio.sleep_forever()
