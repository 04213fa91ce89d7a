"""Jobs of containers of an unprivileged user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import anyio
import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.jobs.types import ContainerImage, Submission
from danlu.training.document import read_manifest_file
from danlu.training.train_job.reader import read_train_job
from danlu.util.json_codec import encode
from tests.conftest import ROOT
from tests.jobs.containers import engine_rig
from tests.jobs.containers.test_jobs import NAME, job, pids_of
from tests.jobs.local.support import (
    alive,
    lines_of,
    local_jobs,
    supervisor_of,
    until,
    wait_for_view,
)
from tests.sandbox.conftest import home
from tests.sandbox.namespace_process import run_inside

__all__ = ["home"]

T = TypeVar("T")

pytestmark = [pytest.mark.real, pytest.mark.needs("busybox"), pytest.mark.timeout(120)]


CLAIM_JOB = """
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
  template:
    spec:
      volumeClaimPolicies: [{templates: [{metadata: {name: data}}]}]
      replicatedJobs:
      - name: node
        template:
          spec:
            template:
              spec:
                securityContext: {runAsUser: 1000}
                containers:
                - name: node
                  image: "registry.example/busybox:1"
                  command: [sh, -c, 'SCRIPT']
                  volumeMounts: [{name: data, mountPath: /data}]
"""

#: Another process, which submits a job and stays.
SUBMITTER = """
import sys
from pathlib import Path
import anyio
from danlu.util.json_codec import decode
from danlu.jobs.types import Submission
from tests.jobs.local.support import local_jobs

given = decode(sys.argv[2].encode(), Submission)
anyio.run(local_jobs(Path(sys.argv[1])).submit, given)
sys.stdin.read()
"""


def run_as_ordinary_user(
    home: Path, act: Callable[[LocalJobs, dict[str, ContainerImage], Path], Awaitable[T]]
) -> T:
    """Run ``act`` in a process of an ordinary user with a working directory; return its result."""

    async def run() -> T:
        with anyio.fail_after(60):
            return await act(
                local_jobs(home),
                {NAME: ContainerImage(engine_rig.image(home), NAME)},
                home / "work",
            )

    def run_as_user() -> T:
        os.environ["XDG_RUNTIME_DIR"] = str(home / "run")
        return anyio.run(run)

    for name in ("run", "work"):
        (home / name).mkdir(mode=0o700)
    return run_inside(run_as_user, home=home, ordinary=True, enter=lambda paths: None)


def test_rootless_replicas_communicate_and_their_files_belong_to_the_user(home: Path) -> None:
    script = """
    touch /workspace/$HOSTNAME
    case $HOSTNAME in
    *-0) mkfifo /open; nc -l -p 23456 <>/open ;;
    *) until echo hello | nc job-worker-0 23456; do sleep 0.05; done ;;
    esac
    """

    async def act(
        jobs: LocalJobs, images: dict[str, ContainerImage], work: Path
    ) -> tuple[str, list[bytes], set[int]]:
        await jobs.submit(job(work, images, script, 2))
        lines = [line.data for line in await lines_of(jobs)]
        view = (await jobs.result("job")).view
        return view.state, lines, {path.stat().st_uid for path in work.glob("job-worker-*")}

    state, lines, owners = run_as_ordinary_user(home, act)
    assert state == "Succeeded"
    assert b"hello" in lines
    assert owners == {(home / "work").stat().st_uid}


def test_a_container_of_another_user_reads_files_and_returns_values(home: Path) -> None:
    script = """
    cat $DANLU_FILES/more; touch $DANLU_FILES/new 2>/dev/null && echo writable
    printf $(id -u)-$RANK > $DANLU_VALUE_FILE; printf raised > $DANLU_RAISED_FILE
    """

    async def act(
        jobs: LocalJobs, images: dict[str, ContainerImage], work: Path
    ) -> tuple[list[bytes], Mapping[str, bytes], Mapping[str, bytes]]:
        files = home / "files"
        files.mkdir(mode=0o700)
        (files / "more").write_text("more\n")
        (files / "more").chmod(0o600)
        images = {NAME: ContainerImage(engine_rig.image(home, User="1234"), NAME)}
        await jobs.submit(job(work, images, script, 2, files=files, value="all"))
        lines = [line.data for line in await lines_of(jobs)]
        result = await jobs.result("job")
        await jobs.remove("job")
        return lines, result.values, result.raised

    lines, values, raised = run_as_ordinary_user(home, act)
    assert lines == [b"more", b"more"]
    assert values == {"worker-0": b"1234-0", "worker-1": b"1234-1"}
    assert raised == {"worker-0": b"raised", "worker-1": b"raised"}
    assert not (home / "jobs/job").exists()


def test_containers_stop_when_their_submitter_exits(home: Path) -> None:
    """Also where their supervisor is in a user namespace and they do not end by themselves."""
    script = "trap '' TERM; echo ready; while :; do sleep 0.1; done"

    async def act(
        jobs: LocalJobs, images: dict[str, ContainerImage], work: Path
    ) -> tuple[str, bool]:
        value = encode(job(work, images, script, 2, tied=True)).decode()
        words = [sys.executable, "-c", SUBMITTER, str(home), value]
        with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE) as submitter:
            try:
                await until(lambda: (home / "jobs/job").exists())
                pids = pids_of(await wait_for_view(jobs, lambda view: len(pids_of(view)) == 2))
            finally:
                submitter.kill()
        final_view = await wait_for_view(jobs, lambda view: view.finished)
        return final_view.status.conditions[-1].message, any(map(alive, pids))

    message, alive_after = run_as_ordinary_user(home, act)
    assert message.startswith("job was stopped: the process that submitted it has exited.")
    assert not alive_after


def test_unenforced_limits_are_a_single_warning(home: Path) -> None:
    limits = {"resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}

    async def act(
        jobs: LocalJobs, images: dict[str, ContainerImage], work: Path
    ) -> tuple[str, list[str]]:
        await jobs.submit(job(work, images, "true", 2, container=limits))
        view = (await jobs.result("job")).view
        return view.state, [text for text in view.warnings if text.startswith("resources:")]

    state, warnings = run_as_ordinary_user(home, act)
    assert state == "Succeeded"
    assert warnings in ([], ["resources: not enforced: no writable cgroup for cpu and memory"])


def test_no_container_outlives_a_supervisor_that_was_killed(home: Path) -> None:
    async def act(jobs: LocalJobs, images: dict[str, ContainerImage], work: Path) -> str:
        await jobs.submit(job(work, images, "echo ready; sleep 100", 2))
        pids = pids_of(await wait_for_view(jobs, lambda view: len(pids_of(view)) == 2))
        os.kill(supervisor_of(home), signal.SIGKILL)
        await until(lambda: not any(alive(pid) for pid in pids))
        return (await wait_for_view(jobs, lambda view: view.state == "Lost")).state

    assert run_as_ordinary_user(home, act) == "Lost"


def test_files_of_other_users_in_a_claim_are_removed_with_the_job(home: Path) -> None:
    script = (
        "mkdir -p /data/private/below; touch /data/private/below/file; chmod -R 700 /data/private"
    )

    async def act(
        jobs: LocalJobs, images: dict[str, ContainerImage], work: Path
    ) -> tuple[str, int, list[Path]]:
        file = read_manifest_file(CLAIM_JOB.replace("SCRIPT", script), "job.yaml")
        train_job = read_train_job(file.job, file.runtimes)
        await jobs.submit(Submission(train_job, work, images))
        state = (await jobs.result("shared")).view.state
        (private,) = home.glob("jobs/shared/claims/*/private")
        owner = private.stat().st_uid
        await jobs.remove("shared")
        return state, owner, [*home.glob("jobs/*")]

    state, owner, left = run_as_ordinary_user(home, act)
    assert (state, left) == ("Succeeded", [])
    assert owner != home.stat().st_uid
