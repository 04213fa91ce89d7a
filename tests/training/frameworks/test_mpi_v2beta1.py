"""MPIJob v2beta1, compared with the sources of the MPI operator 0.8.2."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from danlu.errors import UsageError
from danlu.training.decide import decide
from danlu.training.dependencies import describe_dependencies
from danlu.training.document import read_manifest_file
from danlu.training.framework import ReplicaCounts
from danlu.training.frameworks.mpi import FRAMEWORK as V1
from danlu.training.manifest import read_job, write_job
from danlu.training.registry import find_job_framework, find_version, list_frameworks
from danlu.training.types import (
    CleanPodPolicy,
    ConditionType,
    CreateReplica,
    Decision,
    Job,
    ObservedReplica,
    ObservedReplicas,
    ReplicaId,
    ReplicaPhase,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)
from tests.training.frameworks.topology import (
    FakeTopology,
    job_of,
    names,
    replica_of,
    tallies,
    template,
    values,
)
from tests.training.manifests import find_mistakes

VERSION = "kubeflow.org/v2beta1"
_FOUND = find_version(V1, VERSION)
assert _FOUND is not None
V2 = _FOUND
LAUNCHER = ReplicaType("Launcher")
WORKER = ReplicaType("Worker")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
POD = {"spec": {"containers": [{"name": "any", "image": "example/pi:1"}]}}


def manifest(
    replicas: Mapping[str, Mapping[str, Any]] | None = None, name: str = "foo", **spec: Any
) -> dict[str, Any]:
    """Return a manifest whose launcher and worker have a pod template."""
    given = {"Launcher": {}, "Worker": {"replicas": 2}} if replicas is None else replicas
    specs = {type: {"template": POD, **fields} for type, fields in given.items()}
    return copy.deepcopy(
        {
            "apiVersion": VERSION,
            "kind": "MPIJob",
            "metadata": {"name": name},
            "spec": {**spec, "mpiReplicaSpecs": specs},
        }
    )


def read(document: Mapping[str, Any]) -> Job:
    return read_job(document, V2)


def find_all_mistakes(document: dict[str, Any]) -> set[str]:
    """Return the invalid fields; those that are reported together are removed for another look."""
    found: set[str] = set()
    while new := {finding.path for finding in find_mistakes(document, V2)} - found:
        found |= new
        for path in new:
            *parents, last = path.replace("[", ".").replace("]", "").split(".")
            owner: Any = document
            for name in parents:
                owner = owner.get(name, {})
            if last != "name":
                owner.pop(last, None)
    return found


# -- default_test.go ------------------------------------------------------------------------------

LIMITS = {
    "cleanPodPolicy": "Running",
    "ttlSecondsAfterFinished": 2,
    "activeDeadlineSeconds": 3,
    "backoffLimit": 4,
}


def test_base_defaults() -> None:
    job = read(manifest())
    assert (job.run_policy, job.options) == (RunPolicy(), {})
    assert job.run_policy.clean_pod_policy is CleanPodPolicy.NONE
    result = values(V2, job, "launcher-0")
    assert result["OMPI_MCA_orte_set_default_slots"] == "1"


@pytest.mark.parametrize("implementation", ["Intel", "MPICH"])
def test_base_defaults_overridden(implementation: str) -> None:
    options: dict[str, Any] = {
        "slotsPerWorker": 10,
        "sshAuthMountPath": "/home/mpiuser/.ssh",
        "launcherCreationPolicy": "AtStartup",
        "mpiImplementation": implementation,
    }
    job = read(manifest(runPolicy=LIMITS, **options))
    assert job.options == options
    assert job.run_policy == RunPolicy(CleanPodPolicy.RUNNING, 2, 3, 4)


def test_launcher_defaults() -> None:
    launcher = read(manifest()).replicas[LAUNCHER]
    assert (launcher.replicas, launcher.restart_policy) == (1, RestartPolicy.ON_FAILURE)


def test_worker_defaults() -> None:
    document = manifest({"Launcher": {}, "Worker": {}})
    assert find_all_mistakes(document) == {"spec.mpiReplicaSpecs[Worker].replicas"}
    assert read(manifest()).replicas[WORKER].restart_policy is RestartPolicy.NEVER


# -- validation_test.go ---------------------------------------------------------------------------

VALID: dict[str, Any] = {
    "runPolicy": {"cleanPodPolicy": "Running"},
    "slotsPerWorker": 2,
    "sshAuthMountPath": "/home/mpiuser/.ssh",
}
ONLY_LAUNCHER = {"Launcher": {"replicas": 1, "restartPolicy": "Never"}}
WITH_WORKER = {
    "Launcher": {"replicas": 1, "restartPolicy": "OnFailure"},
    "Worker": {"replicas": 3, "restartPolicy": "Never"},
}


@pytest.mark.parametrize("implementation", ["Intel", "MPICH"])
@pytest.mark.parametrize("replicas", [ONLY_LAUNCHER, WITH_WORKER])
def test_valid_jobs(implementation: str, replicas: dict[str, Any]) -> None:
    document = manifest(replicas, mpiImplementation=implementation, **VALID)
    assert find_mistakes(document, V2) == ()


def test_empty_job() -> None:
    document = {"apiVersion": VERSION, "kind": "MPIJob", "metadata": {}, "spec": {}}
    # The operator checks after setting defaults; the other four of its errors cannot occur then.
    assert {"metadata.name", "spec.mpiReplicaSpecs"} <= {
        finding.path for finding in find_mistakes(document, V2)
    }


def test_invalid_fields_are_reported_at_once() -> None:
    policy = {
        "cleanPodPolicy": "unknown",
        "ttlSecondsAfterFinished": -1,
        "activeDeadlineSeconds": -1,
        "backoffLimit": -1,
        "managedBy": "invalid.com/controller",
    }
    replicas = {"Launcher": {}, "Worker": {"replicas": 1000, "restartPolicy": "Never"}}
    name = "this-name-is-waaaaaaaay-too-long-for-a-worker-hostname"
    document = manifest(replicas, name, runPolicy=policy, mpiImplementation="Unknown")
    assert {finding.path for finding in find_mistakes(document, V2)} == {
        "metadata.name",
        *(f"spec.runPolicy.{field}" for field in policy),
        "spec.mpiImplementation",
    }


def test_empty_replica_specs() -> None:
    assert find_all_mistakes(manifest({})) == {"spec.mpiReplicaSpecs[Launcher]"}


def test_missing_replica_spec_fields() -> None:
    document = manifest({"Launcher": {}, "Worker": {}})
    for spec in document["spec"]["mpiReplicaSpecs"].values():
        spec["template"] = {"spec": {"containers": []}}
    assert {
        "spec.mpiReplicaSpecs[Launcher].template.spec.containers",
        "spec.mpiReplicaSpecs[Worker].template.spec.containers",
        "spec.mpiReplicaSpecs[Worker].replicas",
    } <= {finding.path for finding in find_mistakes(document, V2)}


def test_invalid_replica_fields() -> None:
    document = manifest(
        {
            "Launcher": {"replicas": 2, "restartPolicy": "Always"},
            "Worker": {"replicas": 0, "restartPolicy": "Invalid"},
        }
    )
    assert find_all_mistakes(document) == {
        f"spec.mpiReplicaSpecs[{type}].{field}"
        for type in ("Launcher", "Worker")
        for field in ("replicas", "restartPolicy")
    }


def test_invalid_job_name() -> None:
    assert find_all_mistakes(manifest(name="1-foo")) == {"metadata.name"}


# -- the version ----------------------------------------------------------------------------------


def test_a_manifest_keeps_its_version() -> None:
    document = manifest(mpiImplementation="MPICH", runLauncherAsWorker=True)
    job = read(document)
    assert find_job_framework(job) is V2
    written = write_job(job)
    assert written["apiVersion"] == VERSION
    assert read(written) == job


def test_v1_has_no_fields_of_v2beta1_and_the_other_way_round() -> None:
    document = {**manifest(mpiImplementation="Intel"), "apiVersion": "kubeflow.org/v1"}
    assert [found.path for found in find_mistakes(document, V1)] == ["spec.mpiImplementation"]
    document = manifest(mainContainer="mpi", cleanPodPolicy="All")
    assert [found.path for found in find_mistakes(document, V2)] == [
        "spec.cleanPodPolicy",
        "spec.mainContainer",
    ]


def test_only_the_first_version_of_a_kind_is_listed() -> None:
    assert V1 in list_frameworks()
    assert V2 not in list_frameworks()


def test_an_unknown_version_is_an_error_that_names_both() -> None:
    text = "apiVersion: kubeflow.org/v1alpha2\nkind: MPIJob\nmetadata: {name: a}\n"
    with pytest.raises(UsageError) as raised:
        read_manifest_file(text, "a.yaml")
    assert raised.value.hint == "write apiVersion: kubeflow.org/v1 or kubeflow.org/v2beta1"


# -- TestNewConfigMap, TestUpdateDiscoverHostsInConfigMap ------------------------------------------


def files(workers: int, *running: str, namespace: str = "tenant-a", **options: Any) -> list[str]:
    """Return the host file and the discovery script."""
    job = job_of(V2, {"Launcher": 1, "Worker": workers}, namespace=namespace, options=options)
    seen = [replica_of(name, V2) for name in running]
    made = V2.files(job, FakeTopology(job, V2), seen)
    return [made["hostfile"].text, made["discover_hosts.sh"].text]


@pytest.mark.parametrize("implementation", [None, "OpenMPI"])
def test_host_file_of_open_mpi(implementation: str | None) -> None:
    options = {} if implementation is None else {"mpiImplementation": implementation}
    assert files(2, **options)[0] == (
        "j-worker-0.j.tenant-a.svc slots=1\nj-worker-1.j.tenant-a.svc slots=1\n"
    )
    assert files(1, slotsPerWorker=10, runLauncherAsWorker=True, **options)[0] == (
        "j-launcher.j.tenant-a.svc slots=10\nj-worker-0.j.tenant-a.svc slots=10\n"
    )


@pytest.mark.parametrize("implementation", ["Intel", "MPICH"])
def test_host_file_of_hydra(implementation: str) -> None:
    assert files(1, slotsPerWorker=10, mpiImplementation=implementation)[0] == (
        "j-worker-0.j.tenant-a.svc:10\n"
    )
    assert files(0, mpiImplementation=implementation, runLauncherAsWorker=True)[0] == (
        "j-launcher.j.tenant-a.svc:1\n"
    )


def test_discover_hosts_lists_running_workers_without_slots() -> None:
    assert files(3, slotsPerWorker=4)[1] == "#!/bin/sh\n"
    assert files(12, "launcher-0", "worker-2", "worker-10", "worker-0")[1] == (
        "#!/bin/sh\necho j-worker-0.j.tenant-a.svc\n"
        "echo j-worker-10.j.tenant-a.svc\necho j-worker-2.j.tenant-a.svc\n"
    )
    assert files(1, "worker-0", runLauncherAsWorker=True)[1] == (
        "#!/bin/sh\necho j-launcher.j.tenant-a.svc\necho j-worker-0.j.tenant-a.svc\n"
    )


# -- TestNewLauncherAndWorker ----------------------------------------------------------------------


def launcher_job(**options: Any) -> Job:
    return job_of(V2, {"Launcher": 1, "Worker": 2}, options=options, pod=template(V1))


def test_variables_of_open_mpi_4_and_5() -> None:
    result = values(V2, launcher_job(slotsPerWorker=5), "launcher-0")
    assert list(result)[:3] == [
        "OMPI_MCA_orte_keep_fqdn_hostnames",
        "OMPI_MCA_orte_default_hostfile",
        "OMPI_MCA_orte_set_default_slots",
    ]
    assert result["OMPI_MCA_orte_set_default_slots"] == "5"
    assert result["OMPI_MCA_orte_default_hostfile"] == "/etc/mpi/hostfile"
    assert result["PRTE_MCA_prte_default_hostfile"] == "/etc/mpi/hostfile"
    assert result["PRTE_MCA_plm_ssh_agent"] == result["OMPI_MCA_plm_rsh_agent"]
    assert "K_MPI_JOB_ROLE" not in result


@pytest.mark.parametrize(
    ("implementation", "expected"),
    [
        (
            "Intel",
            {
                "I_MPI_HYDRA_HOST_FILE": "/etc/mpi/hostfile",
                "I_MPI_PERHOST": "5",
                "I_MPI_HYDRA_BOOTSTRAP": "rsh",
                "I_MPI_HYDRA_BOOTSTRAP_EXEC": "/etc/mpi/kubexec.sh",
            },
        ),
        (
            "MPICH",
            {
                "HYDRA_HOST_FILE": "/etc/mpi/hostfile",
                "HYDRA_LAUNCHER": "rsh",
                "HYDRA_LAUNCHER_EXEC": "/etc/mpi/kubexec.sh",
            },
        ),
    ],
)
def test_variables_of_hydra(implementation: str, expected: dict[str, str]) -> None:
    job = launcher_job(slotsPerWorker=5, mpiImplementation=implementation)
    result = values(V2, job, "launcher-0")
    assert {
        name: value for name, value in result.items() if "HYDRA" in name or "I_MPI" in name
    } == expected
    assert not any(name.startswith(("OMPI_MCA", "PRTE")) for name in result)
    assert names(V2, job, "worker-0") == []


def test_only_a_launcher_that_computes_sees_gpus() -> None:
    assert values(V2, launcher_job(), "launcher-0")["NVIDIA_VISIBLE_DEVICES"] == ""
    computing = launcher_job(runLauncherAsWorker=True)
    assert "NVIDIA_VISIBLE_DEVICES" not in names(V2, computing, "launcher-0")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ([], ["sleep", "365d"]),
        (["/usr/sbin/sshd", "-De", "-f", "/home/mpiuser/.sshd_config"], ["sleep", "365d"]),
        (["sh", "-c", "prepare && sleep 1d"], ["sh", "-c", "prepare && sleep 1d"]),
    ],
)
def test_a_worker_waits_instead_of_serving_ssh(command: list[str], expected: list[str]) -> None:
    assert list(V2.adapt_command(launcher_job(), WORKER, command)) == expected
    assert V2.adapt_command(launcher_job(), LAUNCHER, command) == (command or ())


# -- the outcome ----------------------------------------------------------------------------------

READY = ReplicaCounts(expected=2, active=2)
RUNS = ReplicaCounts(expected=1, active=1)


@pytest.mark.parametrize(
    ("launcher", "workers", "expected"),
    [
        (ReplicaCounts(expected=1), READY, None),
        (RUNS, ReplicaCounts(expected=2, active=1), None),
        (RUNS, READY, "Running Launcher"),
        (RUNS, ReplicaCounts(expected=2, active=1, failed=1), None),
        (RUNS, ReplicaCounts(expected=2, active=1, failed=1, evicted=1), "Failed Worker"),
        (ReplicaCounts(expected=1, restarting=1), READY, None),
        (ReplicaCounts(expected=1, failed=1), READY, "Failed Launcher"),
        (ReplicaCounts(expected=1, succeeded=1), READY, "Succeeded Launcher"),
    ],
)
def test_the_launcher_decides_and_failed_workers_are_tolerated(
    launcher: ReplicaCounts, workers: ReplicaCounts, expected: str | None
) -> None:
    verdict = V2.evaluate(launcher_job(), tallies(Launcher=launcher, Worker=workers))
    assert (verdict and f"{verdict.condition} {verdict.replica_type}") == expected


def decide_once(job: Job, *replicas: ObservedReplica) -> Decision:
    return decide(job, ObservedReplicas(replicas), V2, now=NOW)


def attempt(name: str, phase: ReplicaPhase, number: int = 0) -> ObservedReplica:
    code = 1 if phase is ReplicaPhase.FAILED else None
    return ObservedReplica(replica_of(name, V2), phase, f"{name}.{number}", exit_code=code)


def created(decision: Decision) -> list[str]:
    return [str(action.replica) for action in decision.actions if isinstance(action, CreateReplica)]


def test_launcher_waits_for_running_workers_if_told_to() -> None:
    waits = read(manifest(launcherCreationPolicy="WaitForWorkersReady"))
    assert created(decide_once(waits)) == ["worker-0", "worker-1"]
    one = attempt("worker-0", ReplicaPhase.RUNNING)
    pending = attempt("worker-1", ReplicaPhase.PENDING)
    assert created(decide_once(waits, one, pending)) == []
    both = (one, attempt("worker-1", ReplicaPhase.RUNNING))
    assert created(decide_once(waits, *both)) == ["launcher-0"]
    assert created(decide_once(read(manifest())))[0] == "launcher-0"
    ended = attempt("worker-1", ReplicaPhase.FAILED)  # it does not start again
    assert created(decide_once(waits, one, ended)) == ["launcher-0"]
    assert describe_dependencies(waits, V2, LAUNCHER) == "Worker to be Ready"


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_failed_launcher_is_restarted_six_times_whatever_its_policy(policy: str) -> None:
    job = read(manifest({"Launcher": {"restartPolicy": policy}, "Worker": {"replicas": 1}}))
    for number in range(7):
        failed = attempt("launcher-0", ReplicaPhase.FAILED, number)
        decision = decide_once(job, failed, attempt("worker-0", ReplicaPhase.RUNNING))
        assert decision.status.finished == (number == 6)
        assert not decision.status.has_condition(ConditionType.RESTARTING)
        job = _with_status(job, decision)


def test_restarts_of_workers_do_not_count() -> None:
    replicas = {"Launcher": {}, "Worker": {"replicas": 1, "restartPolicy": "OnFailure"}}
    job = read(manifest(replicas, runPolicy={"backoffLimit": 0}))
    failed = attempt("worker-0", ReplicaPhase.FAILED)
    decision = decide_once(job, attempt("launcher-0", ReplicaPhase.RUNNING), failed)
    assert not decision.status.finished
    assert decision.status.record(ReplicaId(WORKER, 0)).restarts == 1
    decision = decide_once(job, attempt("launcher-0", ReplicaPhase.FAILED))
    assert decision.status.finished


def test_a_job_of_its_own_manager_is_decided() -> None:
    job = read(manifest(runPolicy={"managedBy": "kubeflow.org/mpi-operator"}))
    assert created(decide_once(job)) != []
    other = read(manifest(runPolicy={"managedBy": "kueue.x-k8s.io/multikueue"}))
    assert decide_once(other).actions == ()


def _with_status(job: Job, decision: Decision) -> Job:
    return msgspec.structs.replace(job, status=decision.status)
