"""Jobs of small shell programs, run for real."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec

from danlu.jobs.local.client import LocalJobs
from danlu.jobs.local.state import Settings
from danlu.jobs.types import JobView, LogLine, Submission
from danlu.training.types import (
    Job,
    Pace,
    ReplicaId,
    ReplicaSpec,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)
from danlu.util.paths import Paths

WORKER = ReplicaType("Worker")
MASTER = ReplicaType("Master")
SETTINGS = Settings("", "", "", pace=Pace(0.05, 0.1), grace=1.0, sample=0.1)
LIMIT = 20.0


def worker(index: int) -> ReplicaId:
    return ReplicaId(WORKER, index)


def shell(script: str, **container: Any) -> dict[str, Any]:
    """A pod template of one container that runs ``script``."""
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
    """A PyTorchJob of ``workers``."""
    replicas = {WORKER: workers} if master is None else {MASTER: master, WORKER: workers}
    job = Job(kind="PyTorchJob", name=name, replicas=replicas, run_policy=policy or RunPolicy())
    return Submission(job, directory, **fields)


def local_jobs(home: Path, **settings: Any) -> LocalJobs:
    """The jobs of a danlu home, supervised with short measures."""
    ledger = str(home / "ledger.json")
    chosen = msgspec.structs.replace(SETTINGS, ledger=ledger, **settings)
    return LocalJobs(Paths.of({"DANLU_HOME": str(home)}), chosen)


async def lines_of(jobs: LocalJobs, name: str = "job") -> list[LogLine]:
    return [line async for line in jobs.logs(name, follow=True)]


async def seen(jobs: LocalJobs, wanted: Callable[[JobView], bool], *, name: str = "job") -> JobView:
    """The job as it is when ``wanted`` holds."""
    with anyio.fail_after(LIMIT):
        while True:
            view = await jobs.view(name)
            if wanted(view):
                return view
            await anyio.sleep(0.01)


def runs(count: int) -> Callable[[JobView], bool]:
    """Whether so many replicas run."""
    return lambda view: sum(one.state == "Running" for one in view.replicas) == count


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(LIMIT):
        while not holds():
            await anyio.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def marked(job_directory: Path) -> list[int]:
    """The processes that belong to the job in a directory, by their command line or mark."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes()
                cwd = os.readlink(f"/proc/{name}/cwd")
            except OSError:
                continue
            if str(job_directory).encode() in words or cwd.startswith(str(job_directory)):
                found.append(int(name))
    return [one for one in found if alive(one)]


def supervisor_of(home: Path, name: str = "job") -> int:
    """The process id of a job's supervisor."""
    (found,) = supervisors_of(home, name)
    return found


def supervisors_of(home: Path, name: str) -> list[int]:
    """The supervisors of a job: one, or none."""
    wanted = f"danlu.jobs.local.supervisor\0{home / 'jobs' / name}\0".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                if wanted in Path(f"/proc/{entry}/cmdline").read_bytes():
                    found.append(int(entry))
    return found
