"""Claims of a runtime on this machine: a directory that the replicas of a job share."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.jobs.types import Submission
from danlu.training.document import read_manifest_file
from danlu.training.train_job.reader import read_train_job
from tests.jobs.local.support import lines_of, local_jobs

JOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: shared}
spec:
  runtimeRef: {name: shared}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: shared}
spec:
  mlPolicy: {numNodes: 2}
  template:
    spec:
      volumeClaimPolicies:
      - templates: [{metadata: {name: data}}]
        retentionPolicy: {whenDeleted: POLICY}
      replicatedJobs:
      - name: dataset-initializer
        template:
          spec:
            backoffLimit: 0
            template:
              spec:
                containers:
                - name: dataset-initializer
                  image: none
                  command: [sh, -c, 'cat /data/* 2>/dev/null || echo first > /data/file']
                  volumeMounts: [{name: data, mountPath: /data}]
      - name: node
        dependsOn: [{name: dataset-initializer, status: Complete}]
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            backoffLimit: 0
            template:
              spec:
                containers:
                - name: node
                  image: none
                  command: [sh, -c, 'cat /mine/file "$FILE"']
                  env: [{name: FILE, value: /mine/file}]
                  volumeMounts: [{name: data, mountPath: /mine}]
"""


@pytest.fixture
def jobs(tmp_path: Path) -> LocalJobs:
    return local_jobs(tmp_path / "home")


async def run_job(jobs: LocalJobs, work: Path, policy: str) -> list[str]:
    file = read_manifest_file(JOB.replace("POLICY", policy), "job.yaml")
    work.mkdir(exist_ok=True)
    await jobs.submit(Submission(read_train_job(file.job, file.runtimes), work))
    lines = [line.data.decode() for line in await lines_of(jobs, "shared")]
    assert (await jobs.result("shared")).view.state == "Succeeded", lines
    return lines


def list_files(home: Path) -> list[Path]:
    """Return the files in the claims of all runs.

    It looks nowhere else: a job's supervisor may still be removing other directories of a run.
    """
    return sorted(home.glob("jobs/*/claims/*/file"))


@pytest.mark.anyio
async def test_all_replicas_share_a_claim_that_is_deleted_with_the_job(
    jobs: LocalJobs, tmp_path: Path
) -> None:
    assert await run_job(jobs, tmp_path / "work", "Delete") == ["first"] * 4
    # Another run of the name starts with an empty one; the earlier run keeps its own.
    assert await run_job(jobs, tmp_path / "work", "Delete") == ["first"] * 4
    assert len(list_files(tmp_path / "home")) == 2
    await jobs.remove("shared")
    assert list_files(tmp_path / "home") == []


@pytest.mark.anyio
async def test_a_retained_claim_is_found_by_the_next_job_of_the_project(
    jobs: LocalJobs, tmp_path: Path
) -> None:
    assert await run_job(jobs, tmp_path / "work", "Retain") == ["first"] * 4
    await jobs.remove("shared")
    assert await run_job(jobs, tmp_path / "work", "Retain") == ["first"] * 5
    assert await run_job(jobs, tmp_path / "elsewhere", "Retain") == ["first"] * 4


@pytest.mark.anyio
async def test_processes_are_warned_of_paths_in_their_programs(
    jobs: LocalJobs, tmp_path: Path
) -> None:
    await run_job(jobs, tmp_path / "work", "Delete")
    warnings = (await jobs.view("shared")).warnings
    directory = list_files(tmp_path / "home")[0].parent
    assert [warning for warning in warnings if "not mounted" in warning] == [
        f"volumes: not mounted for processes: {path}; in commands and variables it is {directory}"
        for path in ("/data", "/mine")
    ]
