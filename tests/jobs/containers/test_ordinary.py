"""Whole jobs of containers of an account that is not root."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.jobs.types import Image
from tests.jobs.containers import rig
from tests.jobs.containers.test_jobs import NAME, job, pids_of
from tests.jobs.local.support import alive, lines_of, local_jobs, seen, supervisor_of, until
from tests.sandbox.conftest import home
from tests.sandbox.forked import inside

__all__ = ["home"]

T = TypeVar("T")

pytestmark = [pytest.mark.real, pytest.mark.needs("busybox"), pytest.mark.timeout(120)]


def as_anybody(home: Path, act: Callable[[LocalJobs, dict[str, Image], Path], Awaitable[T]]) -> T:
    """What ``act`` gives in a process of an ordinary user's, with a directory to work in."""

    async def run() -> T:
        with anyio.fail_after(50):
            return await act(local_jobs(home), {NAME: Image(rig.image(home), NAME)}, home / "work")

    def prepared() -> T:
        os.environ["XDG_RUNTIME_DIR"] = str(home / "run")
        return anyio.run(run)

    for name in ("run", "work"):
        (home / name).mkdir(mode=0o700)
    return inside(prepared, home=home, ordinary=True, enter=lambda paths: None)


def test_replicas_meet_and_what_they_write_is_the_users(home: Path) -> None:
    script = """
    touch /workspace/$HOSTNAME
    case $HOSTNAME in
    *-0) mkfifo /open; nc -l -p 23456 <>/open ;;
    *) until echo hello | nc job-worker-0 23456; do sleep 0.05; done ;;
    esac
    """

    async def act(
        jobs: LocalJobs, images: dict[str, Image], work: Path
    ) -> tuple[str, list[bytes], set[int]]:
        await jobs.submit(job(work, images, script, 2))
        lines = [line.data for line in await lines_of(jobs)]
        view = (await jobs.result("job")).view
        return view.state, lines, {path.stat().st_uid for path in work.glob("job-worker-*")}

    state, lines, owners = as_anybody(home, act)
    assert state == "Succeeded"
    assert b"hello" in lines
    assert owners == {(home / "work").stat().st_uid}


def test_limits_that_cannot_be_kept_are_one_warning(home: Path) -> None:
    limits = {"resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}

    async def act(jobs: LocalJobs, images: dict[str, Image], work: Path) -> tuple[str, list[str]]:
        await jobs.submit(job(work, images, "true", 2, container=limits))
        view = (await jobs.result("job")).view
        return view.state, [text for text in view.warnings if text.startswith("resources:")]

    state, warnings = as_anybody(home, act)
    assert state == "Succeeded"
    assert warnings in ([], ["resources: not enforced: no control group for cpu and memory here"])


def test_no_container_outlives_a_supervisor_that_was_killed(home: Path) -> None:
    async def act(jobs: LocalJobs, images: dict[str, Image], work: Path) -> str:
        await jobs.submit(job(work, images, "echo ready; sleep 100", 2))
        pids = pids_of(await seen(jobs, lambda view: len(pids_of(view)) == 2))
        os.kill(supervisor_of(home), signal.SIGKILL)
        await until(lambda: not any(alive(pid) for pid in pids))
        return (await seen(jobs, lambda view: view.state == "Lost")).state

    assert as_anybody(home, act) == "Lost"
