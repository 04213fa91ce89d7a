"""Jobs of containers: submitted, supervised, and removed without leftovers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.jobs.local import exec_agent
from danlu.jobs.local.client import LocalJobs
from danlu.jobs.types import ContainerImage, JobView, Submission
from danlu.training.types import ReplicaSpec, RestartPolicy
from danlu.util.files import remove_tree
from tests.jobs.containers import engine_rig
from tests.jobs.local.conftest import home as home
from tests.jobs.local.support import (
    alive,
    lines_of,
    local_jobs,
    runs,
    shell,
    submission,
    supervisor_of,
    until,
    wait_for_view,
    worker,
)
from tests.training.train_jobs import read_text

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.real,
    pytest.mark.needs("root", "busybox"),
    pytest.mark.timeout(120),
]

NAME = "registry.example/busybox:1"


@pytest.fixture
def jobs(home: Path) -> Iterator[LocalJobs]:
    yield local_jobs(home)
    remove_tree(home / "store")


@pytest.fixture
def images(home: Path) -> dict[str, ContainerImage]:
    return {NAME: ContainerImage(engine_rig.image(home), NAME)}


def job(
    directory: Path,
    images: dict[str, ContainerImage],
    script: str,
    replicas: int = 1,
    *,
    pod: dict[str, Any] | None = None,
    container: dict[str, Any] | None = None,
    policy: RestartPolicy = RestartPolicy.NEVER,
    **fields: Any,
) -> Submission:
    template = shell(script, image=NAME, **(container or {}))
    template["spec"].update(pod or {})
    return submission(directory, ReplicaSpec(replicas, template, policy), images=images, **fields)


def pids_of(view: JobView) -> list[int]:
    return [replica.pid for replica in view.replicas if replica.pid is not None]


async def test_containers_resolve_each_other_by_pod_name(
    jobs: LocalJobs, images: dict[str, ContainerImage], tmp_path: Path
) -> None:
    script = """
    case $HOSTNAME in
    *-0) mkfifo /open; nc -l -p 23456 <>/open ;;
    *) until echo hello from $HOSTNAME | nc job-worker-0 23456; do sleep 0.05; done ;;
    esac
    """
    await jobs.submit(job(tmp_path, images, script, 2))
    lines = await lines_of(jobs)
    result = await jobs.result("job")
    assert result.view.state == "Succeeded"
    assert [(line.replica, line.data) for line in lines if line.data.startswith(b"hello")] == [
        (worker(0), b"hello from job-worker-1")
    ]


NAMES = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: job}
spec:
  runtimeRef: {name: plain-distributed}
  trainer:
    image: registry.example/busybox:1
    env:
    - name: OWNER
      valueFrom: {fieldRef: {fieldPath: "metadata.labels['jobset.sigs.k8s.io/jobset-name']"}}
    command:
    - sh
    - -c
    - |
      for end in "" .$OWNER .$OWNER.default.svc .$OWNER.default.svc.cluster.local; do
          name=job-node-0-$JOB_COMPLETION_INDEX$end
          grep -qE "[[:space:]]$name( |$)" /etc/hosts && echo "has $end"
      done
"""


async def test_containers_have_the_names_of_a_cluster(
    jobs: LocalJobs, images: dict[str, ContainerImage], tmp_path: Path
) -> None:
    await jobs.submit(Submission(read_text(NAMES), tmp_path, images=images))
    ends = ("", ".job", ".job.default.svc", ".job.default.svc.cluster.local")
    assert [line.data.decode() for line in await lines_of(jobs)] == [f"has {end}" for end in ends]


async def test_stop_unwinds_a_python_script_in_a_container(
    jobs: LocalJobs, images: dict[str, ContainerImage], tmp_path: Path
) -> None:
    # The container sees this machine's Python.
    mounted = {"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64"}
    volumes = [
        {"name": f"host-{number}", "hostPath": {"path": source}}
        for number, source in enumerate(mounted.values())
    ]
    mounts = [
        {"name": f"host-{number}", "mountPath": target, "readOnly": True}
        for number, target in enumerate(mounted)
    ]
    program = (
        "import pathlib, signal\n"
        "try:\n    pathlib.Path('/workspace/ready').touch()\n    signal.pause()\n"
        "finally:\n    pathlib.Path('/workspace/saved').touch()\n"
    )
    container = {"command": ["/usr/bin/python3", "-c", program], "volumeMounts": mounts}
    pod = {"volumes": volumes, "terminationGracePeriodSeconds": 60}
    await jobs.submit(job(tmp_path, images, "", pod=pod, container=container))
    await until((tmp_path / "ready").exists)
    await jobs.stop("job")
    assert (tmp_path / "saved").exists()


async def test_the_project_and_the_pods_volumes_are_mounted(
    jobs: LocalJobs, images: dict[str, ContainerImage], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("the project\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x").write_text("data\n")
    volumes = [
        {"name": "data", "hostPath": {"path": str(tmp_path / "data")}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
        {
            "name": "settings",
            "configMap": {"name": "settings", "items": [{"key": "a", "path": "b"}]},
        },
        {"name": "key", "secret": {"secretName": "key", "defaultMode": 0o400}},
    ]
    mounts = [
        {"name": "data", "mountPath": "/data", "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "settings", "mountPath": "/etc/settings"},
        {"name": "key", "mountPath": "/key/token", "subPath": "token"},
    ]
    objects = {
        "ConfigMap/settings": {"data": {"a": "setting\n"}},
        "Secret/key": {"stringData": {"token": "secret\n"}},
    }
    script = """
    cat /workspace/train.py /data/x /etc/settings/b /key/token
    df -k /dev/shm | awk 'END { print $2 }'
    stat -c %a /key/token
    """
    value = job(
        tmp_path,
        images,
        script,
        pod={"volumes": volumes},
        container={"volumeMounts": mounts},
        objects=objects,
    )
    await jobs.submit(value)
    output = [line.data.decode() for line in await lines_of(jobs)]
    result = await jobs.result("job")
    assert output == ["the project", "data", "setting", "secret", "8192", "400"]
    assert result.view.state == "Succeeded"


async def test_an_init_container_shares_a_volume_with_the_main_container(
    jobs: LocalJobs, images: dict[str, ContainerImage], tmp_path: Path
) -> None:
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    first = {
        "name": "first",
        "image": NAME,
        "command": ["/bin/sh", "-c", "echo prepared > /shared/x"],
        "volumeMounts": mounts,
    }
    pod = {"volumes": [{"name": "shared"}], "initContainers": [first]}
    value = job(tmp_path, images, "cat /shared/x", pod=pod, container={"volumeMounts": mounts})
    await jobs.submit(value)
    assert [line.data for line in await lines_of(jobs)] == [b"prepared"]


async def test_a_worker_out_of_memory_has_the_reason_oom_killed(
    jobs: LocalJobs, images: dict[str, ContainerImage], tmp_path: Path
) -> None:
    limits = {"resources": {"limits": {"memory": "64Mi"}}}
    script = "case $HOSTNAME in *-1) x=a; while :; do x=$x$x; done ;; esac; sleep 100"
    await jobs.submit(job(tmp_path, images, script, 2, container=limits))
    view = (await jobs.result("job")).view
    if any(text.startswith("resources: not enforced") for text in view.warnings):
        pytest.skip("cannot create cgroups on this machine")
    first = view.status.first_failure
    assert first is not None
    assert (first.replica, first.exit_code, first.reason) == (worker(1), 137, "OOMKilled")


async def test_a_missing_image_is_an_error(jobs: LocalJobs, home: Path, tmp_path: Path) -> None:
    gone = {NAME: ContainerImage("sha256:" + "0" * 64, NAME)}
    await jobs.submit(job(tmp_path, gone, "true"))
    view = (await jobs.result("job")).view
    assert view.state == "Failed"
    assert view.status.first_failure is not None
    assert "sha256:000" in view.status.first_failure.message


async def test_stopping_a_job_stops_its_containers_and_cleans_up(
    jobs: LocalJobs, images: dict[str, ContainerImage], home: Path, tmp_path: Path
) -> None:
    await jobs.submit(job(tmp_path, images, "echo ready; sleep 100", 2))
    pids = pids_of(await wait_for_view(jobs, lambda view: len(pids_of(view)) == 2))
    await jobs.stop("job", grace=2)
    assert not any(alive(pid) for pid in pids)
    await until(lambda: list((home / "store/tmp").iterdir()) == [])


async def test_no_container_outlives_a_supervisor_that_was_killed(
    jobs: LocalJobs, images: dict[str, ContainerImage], home: Path, tmp_path: Path
) -> None:
    await jobs.submit(job(tmp_path, images, "echo ready; sleep 100", 2))
    pids = pids_of(await wait_for_view(jobs, lambda view: len(pids_of(view)) == 2))
    os.kill(supervisor_of(home), signal.SIGKILL)
    await until(lambda: not any(alive(pid) for pid in pids))
    await wait_for_view(jobs, lambda view: view.state == "Lost")


async def test_exec_runs_a_command_in_a_replica(
    jobs: LocalJobs, images: dict[str, ContainerImage], home: Path, tmp_path: Path
) -> None:
    await jobs.submit(job(tmp_path, images, "touch /ready; sleep 100"))
    await wait_for_view(jobs, runs(1))
    socket = home / "jobs/job/files/control.sock"
    words = "until [ -e /ready ]; do sleep 0.02; done; echo in $HOSTNAME"
    command = [sys.executable, "-I", str(exec_agent.__file__), str(socket), "job-worker-0", words]
    with anyio.fail_after(60):
        result = await anyio.run_process(command)
    assert result.stdout == b"in job-worker-0\n"
    await jobs.stop("job", grace=0)


async def test_a_container_finds_the_checkpoints_of_its_earlier_job(
    jobs: LocalJobs, images: dict[str, ContainerImage], tmp_path: Path
) -> None:
    script = "cd $DANLU_CHECKPOINT_DIR && cat saved; echo kept >saved"
    security = {"securityContext": {"runAsUser": 1000}}
    await jobs.submit(job(tmp_path, images, script))
    await jobs.result("job")
    await jobs.remove("job")
    await jobs.submit(job(tmp_path, images, script))
    assert [line.data for line in await lines_of(jobs)] == [b"kept"]
    script = "cd $DANLU_CHECKPOINT_DIR && touch by-another-user && ls"
    await jobs.submit(job(tmp_path, images, script, name="other", container=security))
    assert [line.data for line in await lines_of(jobs, "other")] == [b"by-another-user"]


async def test_container_runs_as_the_user_of_its_security_context_and_with_its_hook(
    jobs: LocalJobs, images: dict[str, ContainerImage], tmp_path: Path
) -> None:
    hook = ["sh", "-c", "echo hook $(id -u) $(id -g) > /out/hook"]
    (tmp_path / "out").mkdir(mode=0o777)
    (tmp_path / "out").chmod(0o777)
    ordered = job(
        tmp_path,
        images,
        "echo main $(id -u) $(id -g); trap 'cat /out/hook; exit 0' TERM;"
        " touch /out/up; while :; do sleep 0.01; done",
        pod={
            "securityContext": {"runAsUser": 1234, "runAsGroup": 7},
            "volumes": [{"name": "out", "hostPath": {"path": str(tmp_path / "out")}}],
            "terminationGracePeriodSeconds": 30,
        },
        container={
            "securityContext": {"runAsGroup": 99},
            "lifecycle": {"preStop": {"exec": {"command": hook}}},
            "volumeMounts": [{"name": "out", "mountPath": "/out"}],
        },
    )
    await jobs.submit(ordered)
    await until((tmp_path / "out" / "up").exists)
    await jobs.stop("job")
    assert [line.data for line in await lines_of(jobs)] == [b"main 1234 99", b"hook 1234 99"]


async def test_container_that_must_not_be_root_is_refused_as_root(
    jobs: LocalJobs, images: dict[str, ContainerImage], tmp_path: Path
) -> None:
    context = {"securityContext": {"runAsNonRoot": True}}
    await jobs.submit(job(tmp_path, images, "true", container=context))
    view = await wait_for_view(jobs, lambda view: view.finished)
    assert "runAsNonRoot" in str(view.status)


async def test_a_volume_of_the_manifest_is_not_hidden_by_the_project(
    jobs: LocalJobs, images: dict[str, ContainerImage], tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/of-the-project").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/of-the-volume").touch()
    volume = {"name": "data", "hostPath": {"path": str(tmp_path / "data")}}
    mount = {"name": "data", "mountPath": "/workspace/"}
    await jobs.submit(
        job(
            tmp_path / "work",
            images,
            "ls /workspace /run/danlu-project",
            pod={"volumes": [volume]},
            container={"volumeMounts": [mount]},
        )
    )
    assert [line.data for line in await lines_of(jobs)] == [
        b"/run/danlu-project:",
        b"of-the-project",
        b"",
        b"/workspace:",
        b"of-the-volume",
    ]


async def test_a_directory_of_a_volume_that_does_not_exist_is_created(
    jobs: LocalJobs, images: dict[str, ContainerImage], tmp_path: Path
) -> None:
    mount = {"name": "data", "mountPath": "/data", "subPath": "a/b"}
    await jobs.submit(
        job(
            tmp_path,
            images,
            "touch /data/file && ls /all/a/b",
            pod={"volumes": [{"name": "data", "emptyDir": {}}]},
            container={"volumeMounts": [mount, {"name": "data", "mountPath": "/all"}]},
        )
    )
    assert [line.data for line in await lines_of(jobs)] == [b"file"]


async def test_a_container_cannot_replace_a_part_of_a_volume_by_a_link(
    jobs: LocalJobs, images: dict[str, ContainerImage], tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "private").write_text("of the host\n")
    hostile = {
        "name": "hostile",
        "image": NAME,
        "command": ["sh", "-c", f"rmdir /all/part && ln -s {tmp_path} /all/part"],
        "volumeMounts": [{"name": "data", "mountPath": "/all"}],
    }
    mount = {"name": "data", "mountPath": "/data", "subPath": "part"}
    await jobs.submit(
        job(
            tmp_path / "work",
            images,
            "cat /data/private",
            pod={"volumes": [{"name": "data", "emptyDir": {}}], "initContainers": [hostile]},
            container={"volumeMounts": [mount]},
        )
    )
    assert [line.data for line in await lines_of(jobs)] == []
    (replica,) = (await jobs.view("job")).replicas
    assert replica.state == "Failed"
    assert "was replaced by a link" in replica.message


async def test_the_run_of_a_job_is_created_in_its_image(
    jobs: LocalJobs, images: dict[str, ContainerImage], tmp_path: Path
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    python = work / "python"
    echo = 'echo "$MLFLOW_EXPERIMENT_NAME" >>/workspace/created'
    python.write_text(f"#!/bin/sh\n{echo}\necho created run 0a1b\n")
    python.chmod(0o755)
    env = {"MLFLOW_EXPERIMENT_NAME": "digits", "PATH": "/workspace:/bin"}
    container = {"env": [{"name": name, "value": value} for name, value in env.items()]}
    script = 'echo "$MLFLOW_RUN_ID"'
    await jobs.submit(job(work, images, script, 2, container=container))
    assert [line.data for line in await lines_of(jobs)] == [b"0a1b", b"0a1b"]
    assert (work / "created").read_text() == "digits\n"
