"""Threads of the libraries in a replica: its share of the cores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.jobs.local.host_resources import available_cores, thread_environment, thread_variables
from danlu.sandbox.launcher.cgroup import cpu_quota
from danlu.training.manifest import read_job
from danlu.training.registry import find_framework, find_job_framework
from danlu.training.replicas import replica_ids
from danlu.training.types import ReplicaId, ReplicaType
from tests.jobs.local.support import lines_of, spec, submission
from tests.training.train_jobs import read_text

PRINT = "echo ${OMP_NUM_THREADS-unset} ${TF_NUM_INTRAOP_THREADS-unset} ${NPROC-unset}"
NAMES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "NPROC")


def threads_of(
    kind: str, type: str, replicas: dict[str, int], *, cores: float, **fields: Any
) -> str | None:
    """``OMP_NUM_THREADS`` of a replica; ``fields`` are of the container, or of the job's spec."""
    framework = find_framework(kind)
    options = {key: fields.pop(key) for key in framework.spec_options if key in fields}
    container = {"name": framework.container, "image": "i", "command": ["python", "t.py"], **fields}
    document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": framework.kind,
        "metadata": {"name": "job"},
        "spec": {
            **options,
            framework.replicas_field: {
                name: {"replicas": count, "template": {"spec": {"containers": [container]}}}
                for name, count in replicas.items()
            },
        },
    }
    job = read_job(document, framework)
    replica = ReplicaId(ReplicaType(type), 0)
    everyone = tuple(replica_ids(job, framework))
    result = thread_environment(job, framework, replica, members=everyone, cores=cores)
    assert set(result) in (set(), set(NAMES))
    assert len(set(result.values())) <= 1
    return result.get("OMP_NUM_THREADS")


def test_replicas_that_compute_share_the_cores() -> None:
    assert threads_of("pytorch", "Worker", {"Worker": 2}, cores=8) == "4"
    assert threads_of("pytorch", "Worker", {"Master": 1, "Worker": 2}, cores=8) == "2"
    assert threads_of("tensorflow", "Worker", {"PS": 6, "Worker": 2}, cores=8) == "4"


def test_every_replica_has_at_least_one_thread() -> None:
    assert threads_of("pytorch", "Worker", {"Worker": 9}, cores=2) == "1"
    assert threads_of("pytorch", "Worker", {"Worker": 1}, cores=0.5) == "1"


@pytest.mark.parametrize(("limit", "threads"), [("3", "3"), ("2500m", "2"), ("100m", "1")])
def test_a_cpu_limit_is_the_share(limit: str, threads: str) -> None:
    resources = {"limits": {"cpu": limit}}
    assert threads_of("jax", "Worker", {"Worker": 4}, cores=8, resources=resources) == threads


def test_a_cpu_limit_is_capped_by_the_machine() -> None:
    resources = {"limits": {"cpu": 64}}
    assert threads_of("jax", "Worker", {"Worker": 1}, cores=8, resources=resources) == "8"


def test_processes_of_a_replica_divide_its_share() -> None:
    assert threads_of("mpi", "Worker", {"Launcher": 1, "Worker": 2}, cores=8) == "4"
    workers = {"Launcher": 1, "Worker": 2}
    assert threads_of("mpi", "Worker", workers, cores=8, slotsPerWorker=2) == "2"
    assert threads_of("pytorch", "Worker", {"Worker": 1}, cores=8, nprocPerNode="4") == "2"


MPI = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: job}
spec: {runtimeRef: {name: deepspeed-distributed}, trainer: {numNodes: 2, numProcPerNode: 2}}
"""


def test_a_launcher_that_is_a_node_has_its_share() -> None:
    job = read_text(MPI)
    framework = find_job_framework(job)
    everyone = tuple(replica_ids(job, framework))
    assert [
        thread_environment(job, framework, replica, members=everyone, cores=8)["OMP_NUM_THREADS"]
        for replica in everyone
    ] == ["2", "2"]


@pytest.mark.parametrize(
    ("words", "threads"),
    [
        (["torchrun", "--nproc-per-node", "2", "t.py"], "4"),
        (["/opt/bin/torchrun", "--nproc_per_node=4", "t.py"], "2"),
        (["python", "-m", "torch.distributed.run", "--nproc-per-node=8", "t.py"], "1"),
        (["torchrun", "t.py"], None),
        (["torchrun", "--nproc-per-node", "gpu", "t.py"], None),
        (["torchrun", "--nproc-per-node"], None),
        (["accelerate", "launch", "t.py"], None),
    ],
)
def test_torchrun_chooses_threads_unless_given_a_number_of_processes(
    words: list[str], threads: str | None
) -> None:
    result = threads_of("pytorch", "Worker", {"Worker": 1}, cores=8, command=words)
    assert result == threads


# -- real processes -------------------------------------------------------------------------------


@pytest.fixture
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


async def collect_lines(jobs: LocalJobs, work: Path, **container: Any) -> set[bytes]:
    await jobs.submit(submission(work, spec(PRINT, 2, **container)))
    return {line.data for line in await lines_of(jobs)}


def format_threads(threads: int) -> bytes:
    return f"{threads} {threads} {threads}".encode()


@pytest.mark.anyio
@pytest.mark.usefixtures("nothing_set")
async def test_processes_get_their_share_as_variables(jobs: LocalJobs, work: Path) -> None:
    share = max(1, int(available_cores() / 2))
    assert await collect_lines(jobs, work) == {format_threads(share)}


@pytest.mark.anyio
@pytest.mark.usefixtures("nothing_set")
async def test_jobs_of_a_sweep_share_the_cores(jobs: LocalJobs, work: Path) -> None:
    cores = max(1, int(available_cores()))
    ordered = submission(work, spec(PRINT), concurrency=cores)
    await jobs.submit(ordered)
    assert {line.data for line in await lines_of(jobs)} == {format_threads(1)}


@pytest.mark.anyio
@pytest.mark.usefixtures("nothing_set")
async def test_variables_of_the_manifest_win(jobs: LocalJobs, work: Path) -> None:
    env = [{"name": "OMP_NUM_THREADS", "value": "7"}, {"name": "NPROC", "value": "9"}]
    share = max(1, int(available_cores() / 2))
    assert await collect_lines(jobs, work, env=env) == {f"7 {share} 9".encode()}


@pytest.mark.anyio
@pytest.mark.usefixtures("nothing_set")
async def test_variables_of_the_user_win(
    jobs: LocalJobs, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    share = max(1, int(available_cores() / 2))
    assert await collect_lines(jobs, work) == {f"5 {share} {share}".encode()}


@pytest.mark.anyio
@pytest.mark.usefixtures("nothing_set")
async def test_sidecars_get_no_thread_variables(jobs: LocalJobs, work: Path) -> None:
    workers = spec("until [ -e printed ]; do sleep 0.02; done")
    template = dict(workers.template)
    beside = {"name": "beside", "image": "none", "command": ["sh", "-c", f"{PRINT}; >printed"]}
    containers = [*template["spec"]["containers"], beside]
    template["spec"] = {**template["spec"], "containers": containers}
    await jobs.submit(submission(work, msgspec.structs.replace(workers, template=template)))
    assert {line.data for line in await lines_of(jobs)} == {b"unset unset unset"}


# -- the quota of control groups ------------------------------------------------------------------


def process(place: Path, cgroup: str, kind: str, options: str) -> str:
    """A directory like ``/proc/self``, with control groups in ``place/tree``."""
    (place / "self").mkdir()
    (place / "self/cgroup").write_text(cgroup)
    line = f"30 25 0:26 / {place}/tree rw shared:4 - {kind} {kind} rw,{options}\n"
    (place / "self/mountinfo").write_text(line)
    return str(place / "self")


def test_the_smallest_quota_of_all_ancestors_counts(tmp_path: Path) -> None:
    own = tmp_path / "tree/pod/container"
    own.mkdir(parents=True)
    (tmp_path / "tree/pod/cpu.max").write_text("150000 100000\n")
    (own / "cpu.max").write_text("max 100000\n")
    directory = process(tmp_path, "0::/pod/container\n", "cgroup2", "nsdelegate")
    assert cpu_quota(directory) == 1.5


def test_a_cgroup_v1_quota_counts(tmp_path: Path) -> None:
    own = tmp_path / "tree/container"
    own.mkdir(parents=True)
    (own / "cpu.cfs_quota_us").write_text("300000\n")
    (own / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "tree/cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "tree/cpu.cfs_period_us").write_text("100000\n")
    lines = "4:memory:/container\n3:cpu,cpuacct:/container\n"
    assert cpu_quota(process(tmp_path, lines, "cgroup", "cpu,cpuacct")) == 3.0


@pytest.mark.parametrize("text", ["", "max 100000\n", "nonsense\n", "1 0\n", "-1 100000\n"])
def test_no_cpu_limit_without_a_quota(tmp_path: Path, text: str) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/cpu.max").write_text(text)
    assert cpu_quota(process(tmp_path, "0::/\n", "cgroup2", "x")) is None
    assert cpu_quota(str(tmp_path / "missing")) is None


def test_all_thread_variables_have_the_same_value() -> None:
    assert thread_variables(3, find_framework("mpi")) == dict.fromkeys(NAMES, "3")
