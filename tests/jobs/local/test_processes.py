"""Jobs of real processes: their states, results and messages."""

from __future__ import annotations

import os
import signal
import sys
from itertools import pairwise
from pathlib import Path

import anyio
import msgspec
import pytest

from danlu.errors import UsageError
from danlu.jobs.local.client import LocalJobs
from danlu.training.types import ConditionType, ElasticPolicy, RestartPolicy, RunPolicy
from tests.jobs.local.support import (
    LIMIT,
    alive,
    find_processes_of_job,
    lines_of,
    local_jobs,
    runs,
    spec,
    submission,
    supervisor_of,
    until,
    wait_for_view,
    worker,
)

pytestmark = pytest.mark.anyio

STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


async def test_a_job_of_two_processes_succeeds_and_has_their_output(
    jobs: LocalJobs, work: Path
) -> None:
    name = await jobs.submit(submission(work, spec("echo rank $RANK of $WORLD_SIZE", 2)))
    lines = await lines_of(jobs)
    result = await jobs.result(name)
    assert result.view.state == "Succeeded"
    assert [(replica.state, replica.exit_code) for replica in result.view.replicas] == [
        ("Succeeded", 0)
    ] * 2
    output = {str(line.replica): line.data for line in lines}
    assert output == {"worker-0": b"rank 0 of 2", "worker-1": b"rank 1 of 2"}


async def test_the_first_failure_has_its_exit_code(jobs: LocalJobs, work: Path) -> None:
    script = (
        'touch "up-$RANK"; case $RANK in 1) until [ -e up-0 ] && [ -e up-2 ]; do sleep 0.02; done;'
        ' exit 1;; esac; until [ -e "$HOME/over" ]; do sleep 0.02; done'
    )
    await jobs.submit(submission(work, spec(script, 3)))
    view = (await jobs.result("job")).view
    assert view.status.first_failure is not None
    assert view.status.first_failure.replica == worker(1)
    assert view.status.first_failure.exit_code == 1
    assert [replica.state for replica in view.replicas] == ["Stopped", "Failed", "Stopped"]


async def test_a_job_is_finished_when_the_last_replica_has_stopped(home: Path, work: Path) -> None:
    script = (
        "[ $RANK = 0 ] || { until [ -e ready ]; do sleep 0.02; done; exit 1; };"
        " trap 'sleep 0.3; echo saved; exit' TERM; touch ready; while true; do sleep 0.02; done"
    )
    jobs = local_jobs(home, sample=0.01)
    await jobs.submit(submission(work, spec(script, 2)))
    view = (await jobs.result("job")).view
    assert [replica.state for replica in view.replicas] == ["Succeeded", "Failed"]
    assert [line.data for line in await lines_of(jobs)] == [b"saved"]


async def test_a_killed_worker_has_the_exit_code_of_its_signal(jobs: LocalJobs, work: Path) -> None:
    await jobs.submit(submission(work, spec("sleep 60", 2)))
    view = await wait_for_view(jobs, runs(2))
    assert view.replicas[1].pid is not None
    os.kill(view.replicas[1].pid, signal.SIGKILL)
    result = (await jobs.result("job")).view
    assert result.state == "Failed"
    assert result.replicas[1].exit_code == 137
    assert result.status.first_failure is not None
    assert result.status.first_failure.replica == worker(1)


@pytest.mark.parametrize(("code", "attempts"), [(143, 2), (3, 1)])
async def test_the_exit_code_policy_restarts_after_signals_only(
    jobs: LocalJobs, work: Path, code: int, attempts: int
) -> None:
    script = f"echo x >>tries; [ $(wc -l <tries) -gt 1 ] || exit {code}"
    await jobs.submit(submission(work, spec(script, policy=RestartPolicy.EXIT_CODE)))
    view = (await jobs.result("job")).view
    assert (work / "tries").read_text() == "x\n" * attempts
    assert view.state == ("Succeeded" if attempts == 2 else "Failed")
    assert view.replicas[0].restarts == attempts - 1


async def test_restarts_back_off(home: Path, work: Path) -> None:
    jobs = local_jobs(home)
    script = "date +%s%N; [ $(ls | wc -l) -gt 2 ] || { mktemp -p .; exit 1; }"
    await jobs.submit(submission(work, spec(script, policy=RestartPolicy.ON_FAILURE)))
    lines = [line for line in await lines_of(jobs) if line.data.isdigit()]
    assert [line.attempt for line in lines] == [0, 1, 2, 3]
    times = [int(line.data) / 1e9 for line in lines]
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits[0] > 0.05
    assert waits[1] > 0.1
    assert [line.number for line in await lines_of(jobs)] == list(range(7))


async def test_background_processes_are_killed_with_their_replica(
    jobs: LocalJobs, work: Path
) -> None:
    script = "setsid sh -c 'echo $$$$ >pid; sleep 60' & until [ -s pid ]; do sleep 0.01; done"
    await jobs.submit(submission(work, spec(script)))
    assert (await jobs.result("job")).view.state == "Succeeded"
    assert not alive(int((work / "pid").read_text()))


async def test_a_killed_supervisor_leaves_no_process_and_the_job_is_lost(
    jobs: LocalJobs, home: Path, work: Path
) -> None:
    script = "setsid sh -c 'trap \"\" TERM; sleep 60; :' & trap '' TERM; sleep 60; :"
    await jobs.submit(submission(work, spec(script, 2)))
    await wait_for_view(jobs, runs(2))
    await until(lambda: len(find_processes_of_job(work)) >= 6)
    os.kill(supervisor_of(home), signal.SIGKILL)
    view = (await jobs.result("job")).view
    assert view.state == "Lost"
    assert [(replica.state, replica.reason) for replica in view.replicas] == [
        ("Failed", "Lost")
    ] * 2
    assert find_processes_of_job(work) == []


async def test_the_supervisor_stops_the_job_if_the_reaper_is_killed(
    jobs: LocalJobs, home: Path, work: Path
) -> None:
    await jobs.submit(submission(work, spec("sleep 60", 2)))
    await wait_for_view(jobs, runs(2))
    status = Path(f"/proc/{supervisor_of(home)}/status").read_text().splitlines()
    keeper = next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
    os.kill(keeper, signal.SIGKILL)
    assert (await jobs.result("job")).view.state == "Failed"
    assert find_processes_of_job(work) == []


async def test_stopping_takes_no_longer_than_its_grace(home: Path, work: Path) -> None:
    # Its default is longer than the test may take.
    jobs = local_jobs(home, grace=600.0)
    await jobs.submit(submission(work, spec(STUBBORN, 2)))
    await until(lambda: len(list((work.parent / "home/jobs/job/logs").glob("*"))) == 2)
    await jobs.stop("job", grace=0.3)
    view = await jobs.view("job")
    assert view.state == "Failed"
    assert view.status.conditions[-1].reason == "PyTorchJobStopped"
    assert [(replica.state, replica.exit_code) for replica in view.replicas] == [
        ("Stopped", 137)
    ] * 2
    assert find_processes_of_job(work) == []


async def test_a_program_may_write_output_after_sigterm(jobs: LocalJobs, work: Path) -> None:
    script = "trap 'echo goodbye; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    await jobs.submit(submission(work, spec(script)))
    await until(lambda: any((work.parent / "home/jobs/job/logs").glob("*")))
    await jobs.stop("job", grace=5)
    assert [line.data for line in await lines_of(jobs)] == [b"ready", b"goodbye"]


async def test_a_suspended_job_has_no_process_and_resumes(jobs: LocalJobs, work: Path) -> None:
    await jobs.submit(submission(work, spec("[ -e go ] || sleep 60", 2)))
    await wait_for_view(jobs, runs(2))
    await jobs.suspend("job", suspended=True)
    view = await wait_for_view(jobs, lambda view: view.state == "Suspended" and not runs(1)(view))
    assert {replica.waits for replica in view.replicas} <= {"the job to be resumed", ""}
    await until(lambda: find_processes_of_job(work) == [])
    (work / "go").touch()
    await jobs.suspend("job", suspended=False)
    assert (await jobs.result("job")).view.state == "Succeeded"


async def test_a_job_is_suspending_while_its_replicas_save(jobs: LocalJobs, work: Path) -> None:
    script = (
        "trap 'until [ -e saved ]; do sleep 0.02; done; exit 0' TERM; touch up; sleep 60 & wait"
    )
    await jobs.submit(submission(work, spec(script)))
    await until((work / "up").exists)
    await jobs.suspend("job", suspended=True)
    view = await wait_for_view(jobs, lambda view: view.state in ("Suspending", "Suspended"))
    assert (view.state, runs(1)(view)) == ("Suspending", True)
    (work / "saved").touch()
    view = await wait_for_view(jobs, lambda view: view.state == "Suspended")
    # Its exit code is 0, but it has not done its work.
    assert [(replica.state, replica.waits) for replica in view.replicas] == [
        ("Waiting", "the job to be resumed")
    ]
    await jobs.stop("job", grace=0)


async def test_a_job_is_scaled_up_and_down(jobs: LocalJobs, work: Path) -> None:
    await jobs.submit(submission(work, spec("exec sleep 60")))
    await wait_for_view(jobs, runs(1))
    await jobs.scale("job", replicas={"worker": 3})
    await wait_for_view(jobs, runs(3))
    await jobs.scale("job", replicas={"Worker": 2})
    await wait_for_view(jobs, lambda view: len(view.replicas) == 2 and runs(2)(view))
    await until(lambda: len(find_processes_of_job(work)) == 2)
    with pytest.raises(UsageError, match="no replicas of type chef"):
        await jobs.scale("job", replicas={"chef": 1})
    await jobs.stop("job", grace=0)


async def test_a_missing_program_is_an_error(jobs: LocalJobs, work: Path) -> None:
    await jobs.submit(submission(work, spec("", command=["no-such-program"])))
    view = (await jobs.result("job")).view
    assert (view.replicas[0].exit_code, view.replicas[0].reason) == (127, "StartError")
    assert view.status.first_failure is not None
    assert "no-such-program" in view.status.first_failure.message


async def test_init_containers_run_before_and_sidecars_end_with_the_main_one(
    jobs: LocalJobs, work: Path
) -> None:
    expected = submission(work, spec("cat made; until [ -e beside ]; do sleep 0.01; done"))
    pod = expected.job.replicas[worker(0).type].template["spec"]
    step = {"name": "a", "image": "none", "command": ["sh", "-c", "printf %s a >>made"]}
    beside = {"name": "b", "image": "none", "command": ["sh", "-c", "touch beside; sleep 60"]}
    pod["initContainers"] = [step, {**step, "command": ["sh", "-c", "printf %s b >>made"]}]
    pod["containers"].append(beside)
    await jobs.submit(expected)
    assert [line.data for line in await lines_of(jobs)] == [b"ab"]
    assert (await jobs.result("job")).view.state == "Succeeded"
    assert find_processes_of_job(work) == []


async def test_a_failed_init_container_fails_the_replica(jobs: LocalJobs, work: Path) -> None:
    expected = submission(work, spec("echo never"))
    step = {"name": "a", "image": "none", "command": ["sh", "-c", "exit 9"]}
    expected.job.replicas[worker(0).type].template["spec"]["initContainers"] = [step]
    await jobs.submit(expected)
    assert (await jobs.result("job")).view.replicas[0].exit_code == 9
    assert await lines_of(jobs) == []


@pytest.mark.real
async def test_a_deadline_ends_the_job(jobs: LocalJobs, work: Path) -> None:
    policy = RunPolicy(active_deadline_seconds=1)
    await jobs.submit(submission(work, spec("sleep 60"), policy=policy))
    view = (await jobs.result("job")).view
    assert view.status.has_condition(ConditionType.FAILED)
    assert find_processes_of_job(work) == []


@pytest.mark.real
async def test_a_job_is_deleted_after_its_ttl(jobs: LocalJobs, work: Path) -> None:
    policy = RunPolicy(ttl_seconds_after_finished=0)
    await jobs.submit(submission(work, spec("true"), policy=policy))
    assert (await jobs.result("job")).view.state == "Succeeded"
    with anyio.fail_after(LIMIT):
        while await jobs.names():
            await anyio.sleep(0.02)


async def test_the_leaders_value_is_the_result(jobs: LocalJobs, work: Path) -> None:
    script = '[ -z "$DANLU_VALUE_FILE" ] || printf %s "$RANK" >"$DANLU_VALUE_FILE"'
    await jobs.submit(submission(work, spec(script, 2), value="leader"))
    assert (await jobs.result("job")).value == b"0"


async def test_processes_use_the_given_python(jobs: LocalJobs, work: Path) -> None:
    command = ["python", "-c", "import sys; print(sys.executable)"]
    await jobs.submit(submission(work, spec("", command=command), python=sys.executable))
    assert [line.data for line in await lines_of(jobs)] == [sys.executable.encode()]
    result = await jobs.command("job", worker(0))
    assert result.args == (sys.executable, *command[1:])
    assert result.environment["RANK"] == "0"
    assert result.directory == str(work)


# -- names ----------------------------------------------------------------------------------------


async def test_a_name_can_be_reused_after_removing_the_job(jobs: LocalJobs, work: Path) -> None:
    await jobs.submit(submission(work, spec("sleep 60")))
    with pytest.raises(UsageError, match="job job already exists"):
        await jobs.submit(submission(work, spec("true")))
    with pytest.raises(UsageError, match="is still running"):
        await jobs.remove("job")
    await jobs.stop("job", grace=0)
    await jobs.remove("job")
    await jobs.submit(submission(work, spec("true")))
    assert (await jobs.result("job")).view.state == "Succeeded"


async def test_a_missing_job_is_an_error_that_lists_existing_jobs(
    jobs: LocalJobs, work: Path
) -> None:
    await jobs.submit(submission(work, spec("true"), name="other"))
    await jobs.result("other")
    for name in ("job", "../jobs/other", ""):
        with pytest.raises(UsageError) as caught:
            await jobs.view(name)
        assert "other" in caught.value.hint


async def test_stop_kills_an_unresponsive_supervisor(
    jobs: LocalJobs, home: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.jobs.local.client._STOP_TIMEOUT", 0.1)
    await jobs.submit(submission(work, spec("sleep 60", 2)))
    await wait_for_view(jobs, runs(2))
    os.kill(supervisor_of(home), signal.SIGSTOP)
    await jobs.stop("job", grace=0.1)
    assert (await jobs.view("job")).state == "Lost"
    assert find_processes_of_job(work) == []


async def test_a_job_directory_may_have_a_longer_path_than_a_socket(
    tmp_path: Path, work: Path
) -> None:
    jobs = local_jobs(tmp_path / ("x" * 100) / ("y" * 100))
    await jobs.submit(submission(work, spec("sleep 60")))
    await jobs.stop("job", grace=0)
    assert (await jobs.view("job")).state == "Failed"


async def test_logs_of_a_removed_replica_can_be_read(jobs: LocalJobs, work: Path) -> None:
    await jobs.submit(submission(work, spec("echo $RANK; exec sleep 60", 2)))
    await wait_for_view(jobs, runs(2))
    await jobs.scale("job", replicas={"worker": 1})
    await wait_for_view(jobs, lambda view: len(view.replicas) == 1)
    await jobs.stop("job", grace=0)
    assert sorted(line.data for line in await lines_of(jobs)) == [b"0", b"1"]


async def test_an_elastic_job_keeps_its_minimum_of_replicas(jobs: LocalJobs, work: Path) -> None:
    expected = submission(work, spec("exec sleep 60"))
    elastic = ElasticPolicy(min_replicas=2, max_replicas=3)
    job = msgspec.structs.replace(expected.job, elastic_policy=elastic)
    await jobs.submit(msgspec.structs.replace(expected, job=job))
    view = await wait_for_view(jobs, runs(2))
    assert len(view.replicas) == 2
    with pytest.raises(UsageError, match="from 2 to 3 replicas of type Worker, not 4"):
        await jobs.scale("job", replicas={"worker": 4})
    await jobs.stop("job", grace=0)


async def test_a_start_error_contains_its_hint(jobs: LocalJobs, work: Path) -> None:
    wrong = [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.nothing"}}}]
    await jobs.submit(submission(work, spec("true", env=wrong)))
    first = (await jobs.result("job")).view.status.first_failure
    assert first is not None
    assert "unknown field 'spec.nothing'" in first.message
    assert "supported fields: metadata.name" in first.message
