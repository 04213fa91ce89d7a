"""PyTorch's own collectives and ``torchrun``, while replicas are killed every ten seconds."""

from __future__ import annotations

import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import anyio
import msgspec
import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.jobs.types import Submission
from danlu.training.types import ElasticPolicy, JobRestartPolicy, RestartPolicy
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


def torch_job(
    work: Path, python: Path, mode: str, *, name: str = "job", replicas: int = 3
) -> Submission:
    launcher = " -m torch.distributed.run --nproc-per-node 1" if mode == "elastic" else ""
    workers = spec(f"exec '{python}'{launcher} '{PROGRAM}'", replicas, RestartPolicy.ON_FAILURE)
    value = submission(work, workers, name=name)
    together = JobRestartPolicy() if mode == "job" else None
    elastic = ElasticPolicy(min_replicas=1, max_replicas=3, max_restarts=100)
    job = msgspec.structs.replace(
        value.job,
        job_restart_policy=together,
        elastic_policy=elastic if mode == "elastic" else None,
    )
    return msgspec.structs.replace(value, job=job)


async def kill_replicas(jobs: LocalJobs, seed: int) -> int:
    """Kill a random replica every ten seconds, and return how many there were to kill."""
    chosen, killed = random.Random(seed), 0
    for _ in range(KILLS):
        await anyio.sleep(INTERVAL)
        pids = [replica.pid for replica in (await jobs.view("job")).replicas if replica.pid]
        if pids:
            with suppress(ProcessLookupError):  # the view is older than its end
                os.kill(chosen.choice(pids), signal.SIGKILL)
                killed += 1
    return killed


async def read_losses(jobs: LocalJobs, name: str) -> set[bytes]:
    return {line.data for line in await lines_of(jobs, name) if line.data.startswith(b"loss")}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("mode", ["job", "elastic", "single"])
async def test_replicas_killed_every_ten_seconds_end_with_the_undisturbed_loss(
    mode: str, seed: int, jobs: LocalJobs, work: Path, torch_python: Path
) -> None:
    await jobs.submit(torch_job(work, torch_python, "job", name="undisturbed", replicas=1))
    await jobs.submit(torch_job(work, torch_python, mode))
    killed = await kill_replicas(jobs, seed)
    losses = await read_losses(jobs, "job")
    view = (await jobs.result("job")).view
    assert view.state == "Succeeded"
    assert killed > KILLS / 2
    assert len(losses) == 1
    assert losses == await read_losses(jobs, "undisturbed")
