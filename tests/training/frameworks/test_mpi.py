"""MPIJob, compared with the sources of the training operator 1.9."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from danlu.training.frameworks.mpi import FRAMEWORK
from danlu.training.types import Job, ReplicaType
from tests.training.frameworks.topology import (
    FakeTopology,
    findings,
    job_of,
    names,
    render_added_variables,
    replica_of,
    template,
    values,
)

GPU = template(FRAMEWORK, limits={"nvidia.com/gpu": "1"})
LAUNCHER = ReplicaType("Launcher")
WORKER = ReplicaType("Worker")


def job(workers: int = 2, **more: Any) -> Job:
    return job_of(FRAMEWORK, {"Launcher": 1, "Worker": workers}, name="J", **more)


def text(of: Job, name: str, *running: str) -> str:
    seen = [replica_of(name, FRAMEWORK) for name in running]
    return FRAMEWORK.files(of, FakeTopology(of, FRAMEWORK), seen)[name].text


def pod(of: Job, replica: str) -> dict[str, Any]:
    id = replica_of(replica, FRAMEWORK)
    result = FRAMEWORK.mutate_pod(
        of, id, FakeTopology(of, FRAMEWORK), of.replicas[id.type].template
    )
    return dict(result)


def test_launcher_variables_are_in_the_order_of_kubeflow() -> None:
    assert names(FRAMEWORK, job(), "launcher-0")[:6] == [
        "OMPI_MCA_plm_rsh_agent",
        "OMPI_MCA_orte_default_hostfile",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "I_MPI_HYDRA_BOOTSTRAP",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC",
    ]
    result = values(FRAMEWORK, job(), "launcher-0")
    assert result["OMPI_MCA_plm_rsh_agent"] == "/etc/mpi/kubexec.sh"
    assert result["OMPI_MCA_orte_default_hostfile"] == "/etc/mpi/hostfile"
    assert result["NVIDIA_VISIBLE_DEVICES"] == result["NVIDIA_DRIVER_CAPABILITIES"] == ""
    assert result["I_MPI_HYDRA_BOOTSTRAP"] == "rsh"
    assert result["I_MPI_HYDRA_BOOTSTRAP_EXEC"] == "/etc/mpi/kubexec.sh"


def test_open_mpi_5_variables_match_open_mpi_4() -> None:
    result = values(FRAMEWORK, job(), "launcher-0")
    assert result["PRTE_MCA_plm_ssh_agent"] == result["OMPI_MCA_plm_rsh_agent"]
    assert result["PRTE_MCA_prte_default_hostfile"] == result["OMPI_MCA_orte_default_hostfile"]


def test_workers_and_sidecars_get_no_variables() -> None:
    added_variables = render_added_variables(
        FRAMEWORK, job(pod=template(FRAMEWORK, sidecar="proxy"))
    )
    assert list(added_variables["launcher-0"]) == ["mpi"]
    assert added_variables["worker-1"] == {"mpi": []}


def test_launcher_with_a_gpu_is_a_host_too() -> None:
    with_gpu = job(1, pod=GPU, options={"slotsPerWorker": 4})
    assert "NVIDIA_VISIBLE_DEVICES" not in names(FRAMEWORK, with_gpu, "launcher-0")
    assert text(with_gpu, "hostfile") == "J-launcher slots=4\nJ-worker-0 slots=4\n"
    assert text(with_gpu, "discover_hosts.sh", "launcher-0", "worker-0") == (
        "#!/bin/sh\necho J-launcher:4\n\necho J-worker-0:4"
    )


def test_intel_mpi_variables_of_the_manifest_are_kept() -> None:
    own = template(FRAMEWORK, env={"I_MPI_HYDRA_BOOTSTRAP": "ssh"})
    result = names(FRAMEWORK, job(pod=own), "launcher-0")
    assert "I_MPI_HYDRA_BOOTSTRAP" not in result
    assert "I_MPI_HYDRA_BOOTSTRAP_EXEC" in result


def test_host_file_lists_all_workers() -> None:
    assert text(job(), "hostfile") == "J-worker-0 slots=1\nJ-worker-1 slots=1\n"
    assert text(job(0), "hostfile") == ""


def test_discover_hosts_lists_running_workers_sorted_by_name() -> None:
    assert text(job(3), "discover_hosts.sh", "worker-2", "launcher-0", "worker-0") == (
        "#!/bin/sh\necho J-worker-0:1\necho J-worker-2:1"
    )
    assert text(job(3), "discover_hosts.sh") == "#!/bin/sh"


def test_discover_hosts_script_runs(tmp_path: Path) -> None:
    script = tmp_path / "discover_hosts.sh"
    script.write_text(text(job(options={"slotsPerWorker": 2}), script.name, "worker-1", "worker-0"))
    result = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=True)
    assert result.stdout == "J-worker-0:2\nJ-worker-1:2\n"


def test_cluster_agent_is_kubectl_exec() -> None:
    assert text(job(), "kubexec.sh") == (
        "#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n"
        '/opt/kube/kubectl exec ${POD_NAME} -- /bin/sh -c "$*"'
    )
    assert text(job(options={"mainContainer": "mpi"}), "kubexec.sh").endswith(
        '/opt/kube/kubectl exec ${POD_NAME} --container mpi -- /bin/sh -c "$*"'
    )


def test_scripts_are_executable_and_the_host_file_is_not() -> None:
    value = job()
    files = FRAMEWORK.files(value, FakeTopology(value, FRAMEWORK), [])
    assert {name: file.executable for name, file in files.items()} == {
        "hostfile": False,
        "kubexec.sh": True,
        "discover_hosts.sh": True,
    }


@pytest.mark.parametrize(("workers", "slots", "processes"), [(2, None, 2), (3, 2, 6), (0, 4, 4)])
def test_mpirun_starts_one_process_per_slot(
    workers: int, slots: int | None, processes: int
) -> None:
    value = job(workers, options={} if slots is None else {"slotsPerWorker": slots})
    command = ("python", "train.py", "--epochs", "3")
    assert FRAMEWORK.wrap_command(value, LAUNCHER, command) == (
        "mpirun",
        "-np",
        str(processes),
        *command,
    )


def test_workers_sleep_and_launcher_without_command_runs_its_image() -> None:
    assert FRAMEWORK.wrap_command(job(), WORKER, ("python", "train.py")) == ("sleep", "365d")
    assert FRAMEWORK.wrap_command(job(), WORKER, ()) == ("sleep", "365d")
    assert FRAMEWORK.wrap_command(job(), LAUNCHER, ()) == ()


def test_launcher_pod_matches_kubeflow() -> None:
    result = pod(job(namespace="NS"), "launcher-0")
    assert FRAMEWORK.pod_name(job(), job().replica_ids(LAUNCHER)[0]) == "J-launcher"
    spec = result["spec"]
    assert spec["serviceAccountName"] == "J-launcher"
    (main,) = spec["containers"]
    assert [(mount["name"], mount["mountPath"]) for mount in main["volumeMounts"]] == [
        ("mpi-job-kubectl", "/opt/kube"),
        ("mpi-job-config", "/etc/mpi"),
    ]
    kubectl, config = spec["volumes"]
    assert kubectl == {"name": "mpi-job-kubectl", "emptyDir": {}}
    assert config["configMap"]["name"] == "J-config"
    assert {item["key"]: item["mode"] for item in config["configMap"]["items"]} == {
        "kubexec.sh": 0o555,
        "hostfile": 0o444,
        "discover_hosts.sh": 0o555,
    }
    (delivery,) = spec["initContainers"]
    assert delivery["name"] == "kubectl-delivery"
    assert delivery["env"] == [
        {"name": "TARGET_DIR", "value": "/opt/kube"},
        {"name": "NAMESPACE", "value": "NS"},
    ]
    size = {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "5Gi"}
    assert delivery["resources"] == {"limits": size, "requests": size}


def test_service_account_of_the_manifest_is_kept() -> None:
    own = template(FRAMEWORK)
    own["spec"]["serviceAccountName"] = "mine"
    assert pod(job(pod=own), "launcher-0")["spec"]["serviceAccountName"] == "mine"


def test_worker_pod_sleeps_and_mounts_only_the_agent() -> None:
    value = template(FRAMEWORK)
    spec = pod(job(pod=value), "worker-1")["spec"]
    (main,) = spec["containers"]
    assert (main["command"], main["args"]) == (["sleep"], ["365d"])
    (volume,) = spec["volumes"]
    assert [item["key"] for item in volume["configMap"]["items"]] == ["kubexec.sh"]
    assert "command" not in value["spec"]["containers"][0], "the template was changed"


def test_worker_command_of_the_manifest_is_kept() -> None:
    own = template(FRAMEWORK)
    own["spec"]["containers"][0]["command"] = ["/usr/sbin/sshd", "-De"]
    (main,) = pod(job(pod=own), "worker-0")["spec"]["containers"]
    assert main["command"] == ["/usr/sbin/sshd", "-De"]
    assert "args" not in main


def test_valid_jobs_have_no_findings() -> None:
    fine = job(options={"slotsPerWorker": 2, "mainContainer": "mpi", "cleanPodPolicy": "All"})
    assert findings(FRAMEWORK, fine) == []


@pytest.mark.parametrize("slots", [0, -1, "two", 1.5, True])
def test_invalid_slots_are_a_finding(slots: object) -> None:
    result = findings(FRAMEWORK, job(options={"slotsPerWorker": slots}))
    assert result == [f"spec.slotsPerWorker: cannot be {slots!r}"]


def test_invalid_launchers_and_containers_are_findings() -> None:
    bad = job_of(FRAMEWORK, {"Launcher": 2, "Worker": 1}, options={"mainContainer": "main"})
    assert findings(FRAMEWORK, bad) == [
        "spec.mainContainer: the workers have no container 'main'",
        "spec.mpiReplicaSpecs[Launcher].replicas: must be 1",
    ]
