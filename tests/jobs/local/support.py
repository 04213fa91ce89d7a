"""Helpers to run jobs of small shell scripts."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec

from danlu.jobs.local.client import LocalJobs
from danlu.jobs.local.job_directory import SupervisorSettings
from danlu.jobs.types import JobView, LogLine, Submission
from danlu.training.types import (
    Job,
    ReplicaId,
    ReplicaSpec,
    ReplicaType,
    RestartBackoff,
    RestartPolicy,
    RunPolicy,
)
from danlu.util.paths import Paths

WORKER = ReplicaType("Worker")
MASTER = ReplicaType("Master")
SETTINGS = SupervisorSettings("", "", "", pace=RestartBackoff(0.05, 0.1), grace=1.0, sample=0.1)
LIMIT = 60.0


def worker(index: int) -> ReplicaId:
    return ReplicaId(WORKER, index)


def shell(script: str, **container: Any) -> dict[str, Any]:
    """Return a pod template with one container that runs ``script``."""
    main = {"name": "pytorch", "image": "none", "command": ["/bin/sh", "-c", script], **container}
    return {"spec": {"containers": [main]}}


def spec(
    script: str, replicas: int = 1, policy: RestartPolicy = RestartPolicy.NEVER, **container: Any
) -> ReplicaSpec:
    return ReplicaSpec(replicas, shell(script, **container), policy)


def submission(
    directory: Path,
    workers: ReplicaSpec,
    *,
    name: str = "job",
    master: ReplicaSpec | None = None,
    policy: RunPolicy | None = None,
    **fields: Any,
) -> Submission:
    """Return a PyTorchJob with these workers."""
    replicas = {WORKER: workers} if master is None else {MASTER: master, WORKER: workers}
    job = Job(kind="PyTorchJob", name=name, replicas=replicas, run_policy=policy or RunPolicy())
    return Submission(job, directory, **fields)


def local_jobs(home: Path, **settings: Any) -> LocalJobs:
    """Return the jobs of a danlu home, with short intervals and timeouts."""
    chosen = msgspec.structs.replace(SETTINGS, **{"ledger": str(home / "ledger.json"), **settings})
    return LocalJobs(Paths.of({"DANLU_HOME": str(home)}), chosen)


async def lines_of(jobs: LocalJobs, name: str = "job") -> list[LogLine]:
    return [line async for line in jobs.logs(name, follow=True)]


async def wait_for_view(
    jobs: LocalJobs, wanted: Callable[[JobView], bool], *, name: str = "job"
) -> JobView:
    """Wait until ``wanted`` is true for the job's view, and return that."""
    with anyio.fail_after(LIMIT):
        while True:
            view = await jobs.view(name)
            if wanted(view):
                return view
            await anyio.sleep(0.01)


def runs(count: int) -> Callable[[JobView], bool]:
    """Return a predicate for the number of running replicas."""
    return lambda view: sum(replica.state == "Running" for replica in view.replicas) == count


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(LIMIT):
        while not holds():
            await anyio.sleep(0.01)


def alive(pid: int) -> bool:
    """Return whether a process is running, and not a zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def find_processes_of_job(job_directory: Path) -> list[int]:
    """Return the processes of a job by its directory in their command line or cwd."""
    results = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes()
                cwd = os.readlink(f"/proc/{name}/cwd")
            except OSError:
                continue
            if str(job_directory).encode() in words or cwd.startswith(str(job_directory)):
                results.append(int(name))
    return [pid for pid in results if alive(pid)]


def supervisor_of(home: Path, name: str = "job") -> int:
    """Return the process id of a job's supervisor."""
    (result,) = supervisors_of(home, name)
    return result


def supervisors_of(home: Path, name: str) -> list[int]:
    """Return the process ids of a job's supervisors: one or none."""
    expected = f"danlu.jobs.local.supervisor\0{home / 'jobs' / name}\0".encode()
    results = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                if expected in Path(f"/proc/{entry}/cmdline").read_bytes():
                    results.append(int(entry))
    return results
