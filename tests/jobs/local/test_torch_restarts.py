"""PyTorch's own collectives, while a replica is killed every ten seconds."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import anyio
import msgspec
import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.jobs.types import Submission
from danlu.training.types import JobRestartPolicy, RestartPolicy
from tests.jobs.local.support import lines_of, spec, submission
from tests.notebook.environments import make
from tests.notebook.notebooks import TORCH

pytestmark = [pytest.mark.anyio, pytest.mark.training, pytest.mark.timeout(2400)]
PROGRAM = Path(__file__).with_name("torch_training.py")
KILLS, INTERVAL = 12, 10.0


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """The interpreter of the environment that notebooks with PyTorch are tested in."""
    return make("torch", TORCH) / "bin" / "python"


def torch_job(work: Path, python: Path, name: str, replicas: int) -> Submission:
    workers = spec(f"exec '{python}' '{PROGRAM}'", replicas, RestartPolicy.ON_FAILURE)
    value = submission(work, workers, name=name)
    job = msgspec.structs.replace(value.job, job_restart_policy=JobRestartPolicy())
    return msgspec.structs.replace(value, job=job)


async def kill_replicas(jobs: LocalJobs, seed: int) -> int:
    """Kill a random replica every ten seconds, and return how many there were to kill."""
    chosen, killed = random.Random(seed), 0
    for _ in range(KILLS):
        await anyio.sleep(INTERVAL)
        pids = [replica.pid for replica in (await jobs.view("job")).replicas if replica.pid]
        if pids:
            os.kill(chosen.choice(pids), signal.SIGKILL)
            killed += 1
    return killed


async def read_losses(jobs: LocalJobs, name: str) -> set[bytes]:
    return {line.data for line in await lines_of(jobs, name) if line.data.startswith(b"loss")}


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_ranks_killed_every_ten_seconds_end_with_the_undisturbed_loss(
    seed: int, jobs: LocalJobs, work: Path, torch_python: Path
) -> None:
    await jobs.submit(torch_job(work, torch_python, "undisturbed", 1))
    await jobs.submit(torch_job(work, torch_python, "job", 3))
    killed = await kill_replicas(jobs, seed)
    losses = await read_losses(jobs, "job")
    view = (await jobs.result("job")).view
    assert view.state == "Succeeded"
    # A kill while the others are being stopped is no failure of its own.
    assert KILLS / 2 < view.status.restarts <= killed
    assert len(losses) == 1
    assert losses == await read_losses(jobs, "undisturbed")
