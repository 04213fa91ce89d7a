"""Local GPUs: allocated across jobs, waited for, and rejected if there are too few."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from danlu.errors import MachineError
from danlu.jobs.local.client import LocalJobs
from danlu.jobs.local.host_resources import available_gpus
from tests.jobs.local.support import lines_of, runs, spec, submission, wait_for_view

pytestmark = pytest.mark.anyio

Machine = Callable[[int], None]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a function that installs an ``nvidia-smi`` listing the given GPUs."""
    import os

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")

    def with_gpus(number: int) -> None:
        program = programs / "nvidia-smi"
        program.write_text(f"#!/bin/sh\nseq 0 {number - 1}\n")
        program.chmod(0o755)

    return with_gpus


def request_gpus(number: int) -> dict[str, dict[str, int]]:
    return {"limits": {"nvidia.com/gpu": number}}


async def test_each_replica_sees_its_own_gpus(
    jobs: LocalJobs, work: Path, machine: Machine
) -> None:
    machine(4)
    expected = spec("echo $CUDA_VISIBLE_DEVICES", 2, resources=request_gpus(2))
    await jobs.submit(submission(work, expected))
    lines = await lines_of(jobs)
    assert sorted(line.data for line in lines) == [b"0,1", b"2,3"]
    view = (await jobs.result("job")).view
    assert sorted(replica.gpus for replica in view.replicas) == [(0, 1), (2, 3)]


async def test_a_job_waits_for_gpus_in_use(jobs: LocalJobs, work: Path, machine: Machine) -> None:
    machine(2)
    first = spec("exec sleep 60", resources=request_gpus(1))
    await jobs.submit(submission(work, first, name="first"))
    await wait_for_view(jobs, runs(1), name="first")
    await jobs.submit(submission(work, spec("true", 2, resources=request_gpus(1)), name="second"))
    waiting = ["Waiting", "Waiting"]
    view = await wait_for_view(
        jobs, lambda view: [replica.state for replica in view.replicas] == waiting, name="second"
    )
    assert view.state == "Waiting"
    assert view.replicas[0].waits == "2 GPUs, in use by job first"
    await jobs.stop("first", grace=0)
    assert (await jobs.result("second")).view.state == "Succeeded"


async def test_a_waiting_job_can_be_stopped(jobs: LocalJobs, work: Path, machine: Machine) -> None:
    machine(1)
    expected = spec("exec sleep 60", resources=request_gpus(1))
    await jobs.submit(submission(work, expected, name="first"))
    await wait_for_view(jobs, runs(1), name="first")
    await jobs.submit(submission(work, expected, name="second"))
    await wait_for_view(jobs, lambda view: view.state == "Waiting", name="second")
    await jobs.stop("second", grace=0.1)
    assert (await jobs.view("second")).replicas[0].state == "Stopped"
    await jobs.stop("first", grace=0)


async def test_too_many_gpus_are_rejected(jobs: LocalJobs, work: Path, machine: Machine) -> None:
    machine(1)
    with pytest.raises(MachineError, match="requests 2 GPUs, but this machine has 1"):
        await jobs.submit(submission(work, spec("true", 2, resources=request_gpus(1))))
    assert await jobs.names() == []


async def test_cuda_visible_devices_limits_the_gpus(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(4)
    assert available_gpus() == (0, 1, 2, 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    assert available_gpus() == (1, 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert available_gpus() == ()
