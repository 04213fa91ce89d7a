"""Hooks and liveness probes of processes, and the fields of a pod that this machine ignores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.errors import UsageError
from danlu.jobs.local.client import LocalJobs
from danlu.jobs.local.pod_fields import list_unread_fields
from danlu.training.types import ReplicaSpec, RestartPolicy
from tests.jobs.local.support import lines_of, runs, shell, spec, submission, until, wait_for_view

pytestmark = pytest.mark.anyio

#: Says on SIGTERM whether ``saved`` exists, then ends.
REPORTS = "trap 'test -e saved; echo TERM $?; exit 1' TERM; touch up; while :; do sleep 0.01; done"


def handler(script: str) -> dict[str, Any]:
    return {"exec": {"command": ["sh", "-c", script]}}


async def stop_and_read(jobs: LocalJobs, work: Path, replica: ReplicaSpec) -> list[bytes]:
    await jobs.submit(submission(work, replica))
    await wait_for_view(jobs, runs(1))
    await until((work / "up").exists)
    await jobs.stop("job")
    return [line.data for line in await lines_of(jobs)]


async def test_pre_stop_hook_ends_before_the_stop_signal(jobs: LocalJobs, work: Path) -> None:
    hooked = spec(REPORTS, lifecycle={"preStop": handler("sleep 0.1; touch saved")})
    hooked.template["spec"]["terminationGracePeriodSeconds"] = 30
    assert await stop_and_read(jobs, work, hooked) == [b"TERM 0"]


async def test_pre_stop_hook_that_hangs_ends_with_the_grace_period(
    jobs: LocalJobs, work: Path
) -> None:
    script = "echo $$ > hook; exec sleep 600"
    hooked = spec(REPORTS, lifecycle={"preStop": handler(script)})
    hooked.template["spec"]["terminationGracePeriodSeconds"] = 1
    assert await stop_and_read(jobs, work, hooked) == [b"TERM 1"]
    pid = (work / "hook").read_text().strip()
    await until(lambda: not Path(f"/proc/{pid}").exists())


async def test_kill_without_grace_runs_no_hook(jobs: LocalJobs, work: Path) -> None:
    hooked = spec(REPORTS, lifecycle={"preStop": handler("touch saved")})
    await jobs.submit(submission(work, hooked))
    await until((work / "up").exists)
    await jobs.stop("job", grace=0)
    assert await lines_of(jobs) == []
    assert not (work / "saved").exists()


async def test_second_stop_ends_a_hook_in_progress(jobs: LocalJobs, work: Path) -> None:
    script = "echo $$ > hook; exec sleep 600"
    hooked = spec(REPORTS, lifecycle={"preStop": handler(script)})
    hooked.template["spec"]["terminationGracePeriodSeconds"] = 500
    await jobs.submit(submission(work, hooked))
    await until((work / "up").exists)
    async with anyio.create_task_group() as group:
        group.start_soon(jobs.stop, "job")
        await until((work / "hook").exists)
        await jobs.stop("job", grace=0)
        view = await wait_for_view(jobs, lambda view: view.finished)
        group.cancel_scope.cancel()
    assert view.replicas[0].exit_code == 137


async def test_hook_is_not_run_for_a_program_that_has_ended(jobs: LocalJobs, work: Path) -> None:
    hooked = spec("exit 0", lifecycle={"preStop": handler("touch saved")})
    await jobs.submit(submission(work, hooked))
    await wait_for_view(jobs, lambda view: view.finished)
    assert not (work / "saved").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lifecycle": {"postStart": handler("exit 3")}}, "postStart hook failed: exit code 3"),
        (
            {"livenessProbe": {**handler("exit 4"), "periodSeconds": 1, "failureThreshold": 1}},
            "liveness probe failed: exit code 4",
        ),
        (
            {"livenessProbe": {**handler("exec sleep 600"), "failureThreshold": 1}},
            "liveness probe failed: sh did not end in 1 s",
        ),
        (
            {
                "startupProbe": {**handler("exit 5"), "failureThreshold": 1},
                "livenessProbe": handler("exit 4"),
            },
            "startup probe failed: exit code 5",
        ),
    ],
)
async def test_failed_hook_or_probe_stops_the_program_and_is_reported(
    jobs: LocalJobs, work: Path, fields: dict[str, Any], message: str
) -> None:
    await jobs.submit(submission(work, spec(REPORTS, **fields)))
    view = await wait_for_view(jobs, lambda view: view.finished)
    assert view.state == "Failed"
    assert f"worker-0: {message}" in view.warnings


async def test_program_whose_probe_failed_is_restarted_by_its_policy(
    jobs: LocalJobs, work: Path
) -> None:
    script = "echo run >> runs; test $(wc -l < runs) = 2 && exit 0; sleep 600"
    hangs = 'test "$(wc -l < runs)" != 1'
    probe = {**handler(hangs), "periodSeconds": 1, "failureThreshold": 1}
    restarting = spec(script, policy=RestartPolicy.ON_FAILURE, livenessProbe=probe)
    await jobs.submit(submission(work, restarting))
    view = await wait_for_view(jobs, lambda view: view.finished)
    assert (view.state, view.replicas[0].restarts) == ("Succeeded", 1)


async def test_liveness_is_probed_after_the_startup(jobs: LocalJobs, work: Path) -> None:
    fields: dict[str, Any] = {
        "startupProbe": {**handler("echo startup >> log; [ -e up ]"), "periodSeconds": 1},
        "livenessProbe": {**handler("[ -e up ] && echo alive >> log"), "failureThreshold": 1},
    }
    wait = "do sleep 0.01; done"
    script = f"until [ -s log ]; {wait}; touch up; until grep alive log; {wait}"
    await jobs.submit(submission(work, spec(script, **fields)))
    view = await wait_for_view(jobs, lambda view: view.finished)
    assert (view.state, view.warnings) == ("Succeeded", ())
    assert (work / "log").read_text().split()[-2:] == ["startup", "alive"]


async def test_successful_hook_and_probe_change_nothing(jobs: LocalJobs, work: Path) -> None:
    fields: dict[str, Any] = {
        "lifecycle": {"postStart": handler("touch posted"), "preStop": {"sleep": {"seconds": 0}}},
        "livenessProbe": {**handler("touch probed"), "periodSeconds": 1},
    }
    script = "while [ ! -e posted ] || [ ! -e probed ]; do sleep 0.01; done"
    await jobs.submit(submission(work, spec(script, **fields)))
    view = await wait_for_view(jobs, lambda view: view.finished)
    assert (view.state, view.warnings) == ("Succeeded", ())


async def test_program_that_does_not_exist_gives_the_reason_at_every_restart(
    jobs: LocalJobs, work: Path
) -> None:
    missing = spec("", policy=RestartPolicy.ON_FAILURE, command=["no-such-program"])
    await jobs.submit(submission(work, missing))
    view = await wait_for_view(jobs, lambda view: view.replicas[0].restarts > 0)
    assert view.replicas[0].message == "program no-such-program not found"
    await jobs.stop("job")


# -- fields that are not read ----------------------------------------------------------------------


def test_every_field_that_is_not_read_is_named() -> None:
    template = shell(
        "true",
        imagePullPolicy="Always",
        readinessProbe=handler("true"),
        livenessProbe={"httpGet": {"port": 1}, "periodSeconds": 3},
        lifecycle={"preStop": {"httpGet": {"port": 1}}},
        securityContext={"runAsUser": 1, "readOnlyRootFilesystem": True},
        resources={"limits": {"cpu": 1, "ephemeral-storage": "1Gi"}, "requests": {"cpu": 1}},
        tty=None,
    )
    template["spec"] |= {"nodeSelector": {"a": "b"}, "tolerations": [], "hostNetwork": True}
    assert sorted(list_unread_fields(template, contained=True)) == [
        "containers.imagePullPolicy",
        "containers.lifecycle.preStop.httpGet",
        "containers.livenessProbe.httpGet",
        "containers.readinessProbe",
        "containers.resources.limits.ephemeral-storage",
        "containers.securityContext.readOnlyRootFilesystem",
        "hostNetwork",
        "nodeSelector",
    ]
    slow = shell("true", startupProbe={"tcpSocket": {"port": 1}}, livenessProbe=handler("true"))
    assert sorted(list_unread_fields(slow, contained=False)) == [
        "containers.livenessProbe",
        "containers.startupProbe.tcpSocket",
    ]
    assert "containers.securityContext" in list_unread_fields(template, contained=False)
    assert not list(list_unread_fields(shell("true", env=[{"name": "A"}]), contained=False))


async def test_fields_that_are_not_read_are_a_warning_of_the_job(
    jobs: LocalJobs, work: Path
) -> None:
    await jobs.submit(submission(work, spec("true", tty=True, stdin=True)))
    view = await wait_for_view(jobs, lambda view: view.finished)
    assert view.warnings == ("not applied on this machine: containers.stdin, containers.tty",)


async def test_missing_host_path_is_refused_when_the_job_is_submitted(
    jobs: LocalJobs, work: Path
) -> None:
    replica = spec("true", policy=RestartPolicy.ON_FAILURE)
    absent = {"name": "v", "hostPath": {"path": str(work / "absent")}}
    replica.template["spec"]["volumes"] = [absent]
    with pytest.raises(UsageError, match="absent does not exist"):
        await jobs.submit(submission(work, replica))


async def test_native_sidecar_is_refused(jobs: LocalJobs, work: Path) -> None:
    replica = spec("true")
    sidecar = {"name": "s", "image": "x", "restartPolicy": "Always", "command": ["true"]}
    replica.template["spec"]["initContainers"] = [sidecar]
    with pytest.raises(UsageError, match="init container s: restartPolicy Always"):
        await jobs.submit(submission(work, replica))
