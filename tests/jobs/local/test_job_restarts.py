"""Jobs whose replicas are all recreated together, as processes of this machine."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from functools import partial
from pathlib import Path

import anyio
import msgspec
import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.jobs.local.replica_environment import checkpoint_directory
from danlu.jobs.types import JobView, Submission
from danlu.training.types import (
    Dependency,
    ElasticPolicy,
    JobRestartPolicy,
    RestartPolicy,
)
from tests.jobs.local.support import (
    WORKER,
    lines_of,
    spec,
    submission,
    until,
    wait_for_view,
)

pytestmark = pytest.mark.anyio
PROGRAM = Path(__file__).parent / "collective_training.py"
EXAMPLE = Path(__file__).parents[3] / "examples" / "checkpoints" / "train.py"
KILLS = 12


def together(value: Submission, *, max_restarts: int | None = None) -> Submission:
    job = msgspec.structs.replace(value.job, job_restart_policy=JobRestartPolicy(max_restarts))
    return msgspec.structs.replace(value, job=job)


async def read_lines(jobs: LocalJobs) -> list[str]:
    return sorted(f"{line.replica}: {line.data.decode()}" for line in await lines_of(jobs))


async def test_replicas_that_wait_for_a_failed_one_are_recreated_with_it(
    jobs: LocalJobs, work: Path
) -> None:
    script = """
        echo "restart ${DANLU_RESTART_COUNT:-none}"
        test -z "$DANLU_RESTART_COUNT" || exit 0
        touch up-$RANK
        test $RANK = 1 || exec sleep 600
        until test -e up-0 -a -e up-2; do sleep 0.01; done
        exit 3
    """
    await jobs.submit(together(submission(work, spec(script, 3)), max_restarts=1))
    assert await read_lines(jobs) == [
        f"worker-{index}: restart {count}" for index in range(3) for count in (1, "none")
    ]
    view = (await jobs.result("job")).view
    assert view.state == "Succeeded"
    assert [replica.restarts for replica in view.replicas] == [1, 1, 1]
    events = [event.message for event in await jobs.events("job")]
    assert any("All replicas are recreated: restart 1 of 1" in text for text in events)


async def test_job_fails_with_the_first_failure_of_its_last_round(
    jobs: LocalJobs, work: Path
) -> None:
    script = "test $RANK = ${DANLU_RESTART_COUNT:-0} && exit 3; exec sleep 600"
    await jobs.submit(together(submission(work, spec(script, 3)), max_restarts=2))
    view = (await jobs.result("job")).view
    assert view.state == "Failed"
    failure = view.status.first_failure
    assert failure is not None
    assert (str(failure.replica), failure.attempt, failure.exit_code) == ("worker-2", 2, 3)


async def test_master_waits_until_the_workers_are_complete(jobs: LocalJobs, work: Path) -> None:
    workers = spec("until test -e go; do sleep 0.01; done; touch worker-$RANK", 2)
    master = msgspec.structs.replace(
        spec("ls worker-*"), depends_on=(Dependency(WORKER, "Complete"),)
    )
    await jobs.submit(submission(work, workers, master=master))
    view = await wait_for_view(jobs, lambda view: view.replicas[0].state == "Waiting")
    assert view.replicas[0].waits == "Worker to be Complete"
    (work / "go").touch()
    assert await read_lines(jobs) == ["master-0: worker-1", "master-0: worker-2"]
    assert (await jobs.result("job")).view.state == "Succeeded"


async def test_workers_that_are_killed_five_times_end_with_the_undisturbed_loss(
    jobs: LocalJobs, work: Path
) -> None:
    command = f"exec '{sys.executable}' '{EXAMPLE}'"
    await jobs.submit(submission(work, spec(command, 2), name="undisturbed"))
    losses = {line.data for line in await lines_of(jobs, "undisturbed") if b"loss" in line.data}
    killed = spec(f"{command} --die-at 3 9 15 22 30", 2)
    await jobs.submit(together(submission(work, killed)))
    lines = await lines_of(jobs)
    assert {line.data for line in lines if line.data.startswith(b"loss")} == losses
    view = (await jobs.result("job")).view
    assert view.state == "Succeeded"
    # Both may reach one of the steps before they are stopped.
    assert 1 <= view.status.restarts <= 5
    assert {line.attempt for line in lines} <= set(range(view.status.restarts + 1))


# -- killed at random -----------------------------------------------------------------------------


def training(work: Path, mode: str, *, name: str = "job") -> Submission:
    flags = " --elastic" if mode == "elastic" else ""
    command = f"exec '{sys.executable}' '{PROGRAM}'{flags}"
    index = {"fieldRef": {"fieldPath": "metadata.labels['training.kubeflow.org/replica-index']"}}
    env = [{"name": "INDEX", "valueFrom": index}]  # an elastic job has no RANK
    workers = spec(command, 1 if mode == "single" else 3, RestartPolicy.ON_FAILURE, env=env)
    value = submission(work, workers, name=name)
    if mode == "together":
        return together(value)
    elastic = ElasticPolicy(min_replicas=1, max_replicas=3) if mode == "elastic" else None
    return msgspec.structs.replace(
        value, job=msgspec.structs.replace(value.job, elastic_policy=elastic)
    )


async def kill_replicas(jobs: LocalJobs, checkpoint: Path, seed: int) -> None:
    """Kill a random replica, each time after the training has made progress."""
    chosen, last = random.Random(seed), 0
    for _ in range(KILLS):
        wanted = last + chosen.randint(1, 15)
        await until(partial(has_reached, checkpoint, wanted))
        while True:
            view = await jobs.view("job")
            pids = [replica.pid for replica in view.replicas if replica.pid is not None]
            if pids and try_kill(chosen.choice(pids)):
                break
            await anyio.lowlevel.checkpoint()
        last = read_step(checkpoint)


def has_reached(checkpoint: Path, step: int) -> bool:
    return read_step(checkpoint) >= step


def read_step(checkpoint: Path) -> int:
    return int(json.loads(checkpoint.read_text())["step"]) if checkpoint.exists() else 0


def try_kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # the view is older than its end
        return False
    return True


async def find_loss(jobs: LocalJobs, name: str) -> str:
    (loss,) = [line.data for line in await lines_of(jobs, name) if line.data.startswith(b"loss")]
    return loss.decode()


def total_restarts(view: JobView) -> int:
    return view.status.restarts + sum(record.restarts for record in view.status.records.values())


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("mode", ["single", "together", "elastic"])
async def test_training_whose_replicas_are_killed_at_random_ends_with_the_undisturbed_loss(
    mode: str, seed: int, jobs: LocalJobs, home: Path, work: Path
) -> None:
    await jobs.submit(training(work, "single", name="undisturbed"))
    loss = await find_loss(jobs, "undisturbed")
    killed = training(work, mode)
    await jobs.submit(killed)
    await kill_replicas(jobs, checkpoint_directory(home, killed) / "last.json", seed)
    assert await find_loss(jobs, "job") == loss
    view = (await jobs.result("job")).view
    assert view.state == "Succeeded"
    # A process of an elastic job may be killed twice before its end is seen.
    assert total_restarts(view) == KILLS or (mode == "elastic" and total_restarts(view) > 0)
