"""MPI's way into a worker: a command in another replica, with the streams of who asked."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.jobs.types import Submission
from danlu.training.types import Job, ReplicaId, ReplicaSpec, ReplicaType, RestartPolicy
from tests.jobs.local.support import (
    find_processes_of_job,
    lines_of,
    shell,
    spec,
    submission,
    until,
)

pytestmark = pytest.mark.anyio

LAUNCHER = ReplicaType("Launcher")
WORKER = ReplicaType("Worker")
AGENT = "agent=$OMPI_MCA_plm_rsh_agent; "
# What the agent runs in an image without Python.
PERL = 'here=$(dirname $agent); agent="perl $here/danlu-exec.pl $here/exec.sock"; '
EITHER_AGENT = pytest.mark.parametrize(
    "choose", ["", pytest.param(PERL, marks=pytest.mark.needs("perl"))], ids=["Python", "Perl"]
)


def mpi_job(directory: Path, script: str, **worker: Any) -> Submission:
    """A launcher that runs ``script``, and two workers that wait."""
    wait: Mapping[str, Any] = {"spec": {"containers": [{"name": "mpi", "image": "i", **worker}]}}
    replicas = {
        LAUNCHER: ReplicaSpec(1, shell(AGENT + script), RestartPolicy.NEVER),
        WORKER: ReplicaSpec(2, wait, RestartPolicy.NEVER),
    }
    return Submission(Job(kind="MPIJob", name="job", replicas=replicas), directory)


@EITHER_AGENT
async def test_exec_runs_in_the_named_worker(jobs: LocalJobs, work: Path, choose: str) -> None:
    env = [
        {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    script = "for index in 0 1; do $agent job-worker-$index 'echo in $WHO from'; done"
    await jobs.submit(mpi_job(work, choose + script, env=env))
    lines = await lines_of(jobs)
    assert (await jobs.result("job")).view.state == "Succeeded"
    assert [line.data for line in lines] == [b"in job-worker-0 from", b"in job-worker-1 from"]
    assert {line.replica for line in lines} == {ReplicaId(LAUNCHER, 0)}


@EITHER_AGENT
async def test_exec_passes_streams_words_and_exit_code(
    jobs: LocalJobs, work: Path, choose: str
) -> None:
    options = "-q -x -p 2222 -o ConnectionAttempts=10 -oBatchMode=yes"
    words = r"""'printf "%s" "a\"\\ü	b"; cat; echo bad >&2;' exit 7"""
    script = f"echo given | $agent {options} job-worker-0 {words} >out 2>err; echo $? >code"
    await jobs.submit(mpi_job(work, choose + script))
    assert (await jobs.result("job")).view.state == "Succeeded"
    results = [(work / name).read_text() for name in ("out", "err", "code")]
    assert results == ['a"\\ü\tbgiven\n', "bad\n", "7\n"]


async def test_a_daemon_started_by_exec_runs_until_the_worker_ends(
    jobs: LocalJobs, work: Path
) -> None:
    script = (
        "$agent job-worker-0 'setsid sleep 60 >/dev/null 2>&1 & echo $! >pid'; "
        "kill -0 $(cat pid) && echo alive"
    )
    await jobs.submit(mpi_job(work, script))
    assert [line.data for line in await lines_of(jobs)] == [b"alive"]
    assert (await jobs.result("job")).view.state == "Succeeded"
    await until(lambda: find_processes_of_job(work) == [])


async def test_exec_is_stopped_when_the_client_disconnects(jobs: LocalJobs, work: Path) -> None:
    script = (
        "(exec $agent job-worker-0 'echo $$$$ >pid; sleep 60; :') & "
        "until [ -s pid ]; do sleep 0.02; done; kill -9 $!; "
        "while kill -0 $(cat pid) 2>/dev/null; do sleep 0.02; done; echo gone"
    )
    await jobs.submit(mpi_job(work, script))
    assert [line.data for line in await lines_of(jobs)] == [b"gone"]


@EITHER_AGENT
async def test_exec_in_a_missing_worker_is_an_error(
    jobs: LocalJobs, work: Path, choose: str
) -> None:
    await jobs.submit(mpi_job(work, f"{choose}$agent job-worker-7 true"))
    lines = await lines_of(jobs)
    assert [line.data for line in lines] == [b"job-worker-7: replica job-worker-7 is not running"]
    assert (await jobs.result("job")).view.replicas[0].exit_code == 2


STOP = """\
import json, socket, sys

connection = socket.socket(socket.AF_UNIX)
connection.connect("exec.sock")
connection.sendall(b'{"do": "stop"}\\n')
print(json.loads(connection.makefile().readline())["error"])
"""


async def test_any_user_of_a_container_can_exec_and_nothing_else(
    jobs: LocalJobs, work: Path, home: Path
) -> None:
    (work / "stop.py").write_text(STOP)
    script = f"cd $(dirname $agent); stat -c %a *.sock; {sys.executable} {work}/stop.py"
    await jobs.submit(mpi_job(work, script))
    assert [line.data.decode() for line in await lines_of(jobs)] == [
        "600",
        "666",
        "the job's programs cannot request: stop",
    ]
    assert (await jobs.result("job")).view.state == "Succeeded"
    assert (home / "jobs").stat().st_mode & 0o77 == 0
    await jobs.submit(submission(work, spec("true"), name="other"))
    await jobs.result("other")
    assert not (home / "jobs/other/files/exec.sock").exists()


async def test_every_replica_has_a_separate_temporary_directory(
    jobs: LocalJobs, work: Path
) -> None:
    """Daemons of Open MPI on one machine remove each other's session directories."""
    script = 'for at in 0 1; do $agent job-worker-$at "echo \\$TMPDIR"; done; echo $TMPDIR'
    await jobs.submit(mpi_job(work, script))
    lines = {line.data.decode() for line in await lines_of(jobs)}
    assert {Path(line).name for line in lines} == {"worker-0", "worker-1", "launcher-0"}
    assert len({Path(line).parent for line in lines}) == 1
    await until(lambda: not any(Path(line).parent.exists() for line in lines))


async def test_the_job_may_set_the_temporary_directory(jobs: LocalJobs, work: Path) -> None:
    env = [{"name": "TMPDIR", "value": str(work)}]
    await jobs.submit(mpi_job(work, "$agent job-worker-0 'echo $TMPDIR'", env=env))
    assert [line.data.decode() for line in await lines_of(jobs)] == [str(work)]


@pytest.mark.real
@pytest.mark.needs("ompi_info")
@pytest.mark.usefixtures("open_mpi")
async def test_a_real_mpirun_starts_a_rank_in_every_worker(jobs: LocalJobs, work: Path) -> None:
    env = [
        {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    program = "echo $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $WHO"
    await jobs.submit(mpi_job(work, f"mpirun -np 2 sh -c '{program}'", env=env))
    lines = [line.data for line in await lines_of(jobs)]
    assert (await jobs.result("job")).view.state == "Succeeded", lines
    assert sorted(lines) == [b"0 of 2 on job-worker-0", b"1 of 2 on job-worker-1"]
    await until(lambda: find_processes_of_job(work) == [])
