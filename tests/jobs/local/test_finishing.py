"""The end of local jobs: replicas finish after a success, and save when they are stopped."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.jobs.local.job_directory import SupervisorSettings
from danlu.jobs.types import JobView, Submission, longest_grace
from danlu.training.types import (
    FinishPolicy,
    Job,
    ReplicaSpec,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)
from tests.jobs.local.support import (
    find_processes_of_job,
    local_jobs,
    runs,
    spec,
    submission,
    supervisor_of,
    until,
    wait_for_view,
)

pytestmark = pytest.mark.anyio

#: Ends after SIGTERM, once the file ``go`` exists: the test decides how long saving takes.
SAVES = (
    "trap 'while [ ! -e go ]; do sleep 0.01; done; echo saved > checkpoint; exit 0' TERM;"
    " touch ready-$RANK; while :; do sleep 0.01; done"
)
WAITS = "while [ ! -e go ]; do echo saving; sleep 0.02; done; echo saved > shard"


def master_submission(work: Path, worker: str, master: str = "exit 0", **fields: Any) -> Submission:
    return submission(work, spec(worker), master=spec(master), **fields)


def finishing(view: JobView) -> bool:
    return view.state == "Finishing"


def with_grace(workers: ReplicaSpec, seconds: int) -> ReplicaSpec:
    template = {**workers.template}
    template["spec"] = {**template["spec"], "terminationGracePeriodSeconds": seconds}
    return msgspec.structs.replace(workers, template=template)


def python_spec(script: str) -> ReplicaSpec:
    return spec("", command=[sys.executable, "-c", textwrap.dedent(script)])


# -- after the success ----------------------------------------------------------------------------


async def test_a_finishing_job_waits_for_a_worker_that_saves(jobs: LocalJobs, work: Path) -> None:
    await jobs.submit(master_submission(work, WAITS))
    view = await wait_for_view(jobs, finishing)
    assert not view.finished
    assert [replica.state for replica in view.replicas] == ["Succeeded", "Running"]
    (work / "go").touch()
    result = (await jobs.result("job")).view
    assert result.state == "Succeeded"
    assert [replica.state for replica in result.replicas] == ["Succeeded", "Succeeded"]
    assert (work / "shard").read_text() == "saved\n"
    assert result.warnings == ()


async def test_a_finishing_job_stops_and_names_an_idle_worker(home: Path, work: Path) -> None:
    jobs = local_jobs(home, finish=FinishPolicy(timeout=60.0, idle=0.5, stops_all=True))
    await jobs.submit(master_submission(work, "exec sleep 60"))
    result = (await jobs.result("job")).view
    assert result.state == "Succeeded"
    assert [replica.state for replica in result.replicas] == ["Succeeded", "Stopped"]
    (warning,) = result.warnings
    assert warning.startswith("worker-0 was stopped while still running, ")
    assert warning.endswith(" after the job succeeded")
    assert warning in result.status.conditions[-1].message
    reasons = [event.reason for event in await jobs.events("job") if event.type == "Warning"]
    assert reasons == ["PyTorchJobUnfinished"]
    assert find_processes_of_job(work) == []


async def test_cpu_use_counts_as_progress(home: Path, work: Path) -> None:
    jobs = local_jobs(home, finish=FinishPolicy(timeout=1.5, idle=0.5, stops_all=True))
    await jobs.submit(master_submission(work, "while :; do :; done"))
    result = (await jobs.result("job")).view
    assert result.status.finishing is not None
    assert result.status.completion_time is not None
    # Not the idle limit ended the wait, but the timeout.
    took = result.status.completion_time - result.status.finishing.since
    assert took.total_seconds() >= 1.5


async def test_a_failure_while_finishing_is_named(jobs: LocalJobs, work: Path) -> None:
    worker = spec("while [ ! -e go ]; do sleep 0.02; done; exit 28", policy=RestartPolicy.ALWAYS)
    await jobs.submit(submission(work, worker, master=spec("exit 0")))
    await wait_for_view(jobs, finishing)
    (work / "go").touch()
    result = (await jobs.result("job")).view
    assert result.state == "Succeeded"
    assert result.warnings == (
        "worker-0 failed (exit code 28) and was not restarted: the job had succeeded",
    )


async def test_a_job_stopped_while_finishing_has_succeeded(jobs: LocalJobs, work: Path) -> None:
    await jobs.submit(master_submission(work, WAITS))
    await wait_for_view(jobs, finishing)
    await jobs.stop("job")
    result = await jobs.view("job")
    assert result.state == "Succeeded"
    assert "worker-0 was stopped while still running" in result.warnings[0]


async def test_a_parameter_server_is_not_waited_for(jobs: LocalJobs, work: Path) -> None:
    server = spec("exec sleep 60", name="tensorflow")
    chief = spec("exit 0", name="tensorflow")
    replicas = {ReplicaType("Chief"): chief, ReplicaType("PS"): server}
    await jobs.submit(Submission(Job(kind="TFJob", name="job", replicas=replicas), work))
    result = (await jobs.result("job")).view
    assert result.state == "Succeeded"
    assert result.warnings == ()


async def test_a_deadline_ends_the_wait(jobs: LocalJobs, work: Path) -> None:
    policy = RunPolicy(active_deadline_seconds=1)
    await jobs.submit(master_submission(work, WAITS, policy=policy))
    result = (await jobs.result("job")).view
    assert result.state == "Succeeded"
    assert "worker-0 was stopped while still running" in result.warnings[0]


# -- stopped --------------------------------------------------------------------------------------


async def test_stop_uses_the_grace_period_of_the_manifest(home: Path, work: Path) -> None:
    jobs = local_jobs(home, grace=0.1)
    await jobs.submit(submission(work, with_grace(spec(SAVES), 30)))
    await until((work / "ready-0").exists)
    (work / "go").touch()
    await jobs.stop("job")
    assert (work / "checkpoint").read_text() == "saved\n"
    (worker,) = (await jobs.view("job")).replicas
    assert (worker.state, worker.exit_code, worker.reason) == ("Succeeded", 0, "")


async def test_the_default_grace_period_is_thirty_seconds() -> None:
    assert SupervisorSettings("", "", "").grace == 30.0
    job_submission = submission(Path("/"), spec("true")).job
    assert longest_grace(job_submission) == 30.0
    longer = submission(Path("/"), with_grace(spec("true"), 90), master=spec("true")).job
    assert longest_grace(longer) == 90.0


async def test_a_second_stop_with_a_shorter_grace_period_kills_immediately(
    jobs: LocalJobs, work: Path
) -> None:
    await jobs.submit(submission(work, with_grace(spec(SAVES, 2), 600)))
    await until(lambda: len(list(work.glob("ready-*"))) == 2)
    # The first grace period is longer than the test may take.
    async with anyio.create_task_group() as group:
        group.start_soon(jobs.stop, "job")
        view = await wait_for_view(jobs, lambda view: view.state == "Stopping")
        assert not view.finished
        await jobs.stop("job", grace=0)
    result = await jobs.view("job")
    assert result.state == "Failed"
    assert [(replica.state, replica.reason) for replica in result.replicas] == [
        ("Stopped", "Killed")
    ] * 2
    assert result.status.conditions[-1].message == (
        "job was stopped. worker-0, worker-1 had not ended and were killed."
    )


async def test_a_terminated_supervisor_stops_replicas_gracefully(
    jobs: LocalJobs, home: Path, work: Path
) -> None:
    await jobs.submit(submission(work, with_grace(spec(SAVES), 30)))
    await until((work / "ready-0").exists)
    os.kill(supervisor_of(home), signal.SIGTERM)
    await wait_for_view(jobs, lambda view: view.state == "Stopping")
    (work / "go").touch()
    await wait_for_view(jobs, lambda view: view.finished)
    assert (work / "checkpoint").read_text() == "saved\n"


async def test_stop_unwinds_a_python_script(jobs: LocalJobs, work: Path) -> None:
    script = """
        import pathlib, signal
        try:
            pathlib.Path("ready").touch()
            signal.pause()
        finally:
            pathlib.Path("saved").touch()
    """
    await jobs.submit(submission(work, with_grace(python_spec(script), 30)))
    await until((work / "ready").exists)
    await jobs.stop("job")
    assert (work / "saved").exists()


async def test_a_second_stop_does_not_interrupt_saving(jobs: LocalJobs, work: Path) -> None:
    script = """
        import pathlib, signal, time
        try:
            pathlib.Path("ready").touch()
            signal.pause()
        finally:
            pathlib.Path("saving").touch()
            while not pathlib.Path("go").exists():
                time.sleep(0.01)
            pathlib.Path("saved").touch()
    """
    await jobs.submit(submission(work, with_grace(python_spec(script), 600)))
    await until((work / "ready").exists)
    async with anyio.create_task_group() as group:
        group.start_soon(jobs.stop, "job")
        await until((work / "saving").exists)
        group.start_soon(jobs.stop, "job")
        await anyio.wait_all_tasks_blocked()
        (work / "go").touch()
    assert (work / "saved").exists()


async def test_stop_sends_sigterm_to_a_script_that_handles_it(jobs: LocalJobs, work: Path) -> None:
    script = """
        import pathlib, signal, sys
        def save(number, frame):
            pathlib.Path("saved").write_text(str(number))
            sys.exit()
        signal.signal(signal.SIGTERM, save)
        pathlib.Path("ready").touch()
        while True:
            signal.pause()
    """
    await jobs.submit(submission(work, with_grace(python_spec(script), 30)))
    await until((work / "ready").exists)
    await jobs.stop("job")
    assert (work / "saved").read_text() == str(int(signal.SIGTERM))


async def test_a_shell_that_waits_for_a_program_ends_at_once(jobs: LocalJobs, work: Path) -> None:
    # Bash handles SIGINT while it waits, and goes on.
    words = ["bash", "-c", "touch ready; sleep 600; touch after"]
    await jobs.submit(submission(work, with_grace(spec("", command=words), 600)))
    await until((work / "ready").exists)
    await jobs.stop("job")
    (replica,) = (await jobs.view("job")).replicas
    assert (replica.state, replica.exit_code) == ("Stopped", 128 + signal.SIGTERM)


async def test_sidecars_get_sigterm_when_the_main_container_ends(
    jobs: LocalJobs, work: Path
) -> None:
    await jobs.submit(submission(work, _with_sidecar(spec(SAVES))))
    await until(lambda: (work / "ready-0").exists() and (work / "side-ready").exists())
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: jobs.stop("job", grace=30))
        # Before the main one has ended.
        await until((work / "side-saved").exists)
        (work / "go").touch()
    assert runs(0)(await jobs.view("job"))


def _with_sidecar(workers: ReplicaSpec) -> ReplicaSpec:
    script = "trap 'touch side-saved; exit 0' TERM; touch side-ready; while :; do sleep 0.01; done"
    side = {"name": "side", "image": "none", "command": ["/bin/sh", "-c", script]}
    containers = [*workers.template["spec"]["containers"], side]
    template = {"spec": {**workers.template["spec"], "containers": containers}}
    return msgspec.structs.replace(workers, template=template)
