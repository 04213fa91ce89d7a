"""A job ends with its submitter if it is attached, and when its directory is removed."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.util.locks import lock_is_held
from tests.jobs.local.support import alive, runs, spec, submission, until, wait_for_view

pytestmark = pytest.mark.anyio

SUBMITTER = """
import sys, time
from pathlib import Path
import anyio
from tests.jobs.local.support import local_jobs, spec, submission

home, work, mode, script = sys.argv[1:]
given = submission(Path(work), spec(script, 2), tied=mode == "attached")
anyio.run(local_jobs(Path(home)).submit, given)
print("submitted", flush=True)
sys.stdin.read()
"""

#: One that does not end when it is asked to.
STUBBORN = "trap '' TERM; : >ready-$RANK; while :; do sleep 0.1; done"


@pytest.fixture
def submit_mode() -> str:
    return "attached"


@pytest.fixture
def submitter(home: Path, work: Path, submit_mode: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that submitted the job and waits."""
    words = [sys.executable, "-c", SUBMITTER, str(home), str(work), submit_mode, STUBBORN]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "submitted\n"
        yield process
        process.kill()


async def test_a_tied_job_stops_when_its_submitter_is_killed(
    jobs: LocalJobs, work: Path, submitter: subprocess.Popen[str]
) -> None:
    view = await wait_for_view(jobs, runs(2))
    # Running replicas have not run their first command yet.
    await until(lambda: len(list(work.glob("ready-*"))) == 2)
    pids = [replica.pid for replica in view.replicas if replica.pid]
    submitter.send_signal(signal.SIGKILL)
    final_view = await wait_for_view(jobs, lambda view: view.finished)
    assert len(pids) == 2
    assert not any(map(alive, pids))
    last = final_view.status.conditions[-1]
    assert (final_view.state, last.reason) == ("Failed", "PyTorchJobStopped")
    assert last.message == (
        "job was stopped: the process that submitted it has exited."
        " worker-0, worker-1 had not ended and were killed."
    )


async def test_a_tied_job_stops_when_its_submitter_exits(
    jobs: LocalJobs, submitter: subprocess.Popen[str]
) -> None:
    await wait_for_view(jobs, runs(2))
    assert submitter.stdin is not None
    submitter.stdin.close()
    final_view = await wait_for_view(jobs, lambda view: view.finished)
    assert "has exited" in final_view.status.conditions[-1].message


@pytest.mark.parametrize("submit_mode", ["detached"])
async def test_an_untied_job_continues_when_its_submitter_is_killed(
    jobs: LocalJobs, submitter: subprocess.Popen[str]
) -> None:
    view = await wait_for_view(jobs, runs(2))
    submitter.kill()
    submitter.wait()
    # Nothing must happen, so there is no event to wait for: a tied job would stop by then.
    await anyio.sleep(0.3)
    assert all(alive(replica.pid) for replica in view.replicas if replica.pid)
    assert not (await jobs.view("job")).finished


async def test_a_tied_job_can_succeed(jobs: LocalJobs, work: Path) -> None:
    await jobs.submit(submission(work, spec("true"), tied=True))
    assert (await jobs.result("job")).view.state == "Succeeded"


async def test_a_job_stops_when_its_directory_is_removed(
    jobs: LocalJobs, work: Path, home: Path
) -> None:
    await jobs.submit(submission(work, spec("exec sleep 60", 2)))
    view = await wait_for_view(jobs, runs(2))
    pids = [replica.pid for replica in view.replicas if replica.pid]
    directory = home / "jobs/job"
    lock = os.open(directory / "supervisor.lock", os.O_RDWR)
    shutil.rmtree(directory)
    try:
        await until(lambda: not lock_is_held(Path(f"/proc/self/fd/{lock}")))
    finally:
        os.close(lock)
    assert not any(map(alive, pids))
    assert os.listdir(home / "jobs") == []


async def test_replicas_of_large_jobs_do_not_run_out_of_descriptors(
    jobs: LocalJobs, work: Path
) -> None:
    await jobs.submit(submission(work, spec("ulimit -Sn")))
    soft = [int(line.data) async for line in jobs.logs("job", follow=True)]
    assert soft[0] >= min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
