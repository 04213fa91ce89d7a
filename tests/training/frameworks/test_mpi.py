"""MPIJob, held against the sources of the training operator 1.9."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from danlu.training.frameworks.mpi import FRAMEWORK
from danlu.training.types import Job, ReplicaType
from tests.training.frameworks.clusters import (
    Cluster,
    findings,
    injected,
    job_of,
    names,
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
    seen = [replica_of(one, FRAMEWORK) for one in running]
    return FRAMEWORK.files(of, Cluster(of, FRAMEWORK), seen)[name].text


def pod(of: Job, replica: str) -> dict[str, Any]:
    one = replica_of(replica, FRAMEWORK)
    made = FRAMEWORK.decorate(of, one, Cluster(of, FRAMEWORK), of.replicas[one.type].template)
    return dict(made)


def test_the_launcher_gets_the_variables_in_kubeflows_order() -> None:
    assert names(FRAMEWORK, job(), "launcher-0")[:6] == [
        "OMPI_MCA_plm_rsh_agent",
        "OMPI_MCA_orte_default_hostfile",
        "NVIDIA_VISIBLE_DEVICES",
        "NVIDIA_DRIVER_CAPABILITIES",
        "I_MPI_HYDRA_BOOTSTRAP",
        "I_MPI_HYDRA_BOOTSTRAP_EXEC",
    ]
    found = values(FRAMEWORK, job(), "launcher-0")
    assert found["OMPI_MCA_plm_rsh_agent"] == "/etc/mpi/kubexec.sh"
    assert found["OMPI_MCA_orte_default_hostfile"] == "/etc/mpi/hostfile"
    assert found["NVIDIA_VISIBLE_DEVICES"] == found["NVIDIA_DRIVER_CAPABILITIES"] == ""
    assert found["I_MPI_HYDRA_BOOTSTRAP"] == "rsh"
    assert found["I_MPI_HYDRA_BOOTSTRAP_EXEC"] == "/etc/mpi/kubexec.sh"


def test_open_mpi_5_is_told_the_same() -> None:
    found = values(FRAMEWORK, job(), "launcher-0")
    assert found["PRTE_MCA_plm_ssh_agent"] == found["OMPI_MCA_plm_rsh_agent"]
    assert found["PRTE_MCA_prte_default_hostfile"] == found["OMPI_MCA_orte_default_hostfile"]


def test_workers_and_sidecars_get_nothing() -> None:
    found = injected(FRAMEWORK, job(pod=template(FRAMEWORK, sidecar="proxy")))
    assert list(found["launcher-0"]) == ["mpi"]
    assert found["worker-1"] == {"mpi": []}


def test_a_launcher_with_a_gpu_keeps_it_and_trains_too() -> None:
    with_gpu = job(1, pod=GPU, options={"slotsPerWorker": 4})
    assert "NVIDIA_VISIBLE_DEVICES" not in names(FRAMEWORK, with_gpu, "launcher-0")
    assert text(with_gpu, "hostfile") == "J-launcher slots=4\nJ-worker-0 slots=4\n"
    assert text(with_gpu, "discover_hosts.sh", "launcher-0", "worker-0") == (
        "#!/bin/sh\necho J-launcher:4\n\necho J-worker-0:4"
    )


def test_intels_variables_of_the_manifest_stand() -> None:
    own = template(FRAMEWORK, env={"I_MPI_HYDRA_BOOTSTRAP": "ssh"})
    found = names(FRAMEWORK, job(pod=own), "launcher-0")
    assert "I_MPI_HYDRA_BOOTSTRAP" not in found
    assert "I_MPI_HYDRA_BOOTSTRAP_EXEC" in found


def test_the_host_file_names_all_workers() -> None:
    assert text(job(), "hostfile") == "J-worker-0 slots=1\nJ-worker-1 slots=1\n"
    assert text(job(0), "hostfile") == ""


def test_only_running_workers_are_discovered_by_name() -> None:
    assert text(job(3), "discover_hosts.sh", "worker-2", "launcher-0", "worker-0") == (
        "#!/bin/sh\necho J-worker-0:1\necho J-worker-2:1"
    )
    assert text(job(3), "discover_hosts.sh") == "#!/bin/sh"


def test_discovery_is_a_script_that_horovod_can_run(tmp_path: Path) -> None:
    script = tmp_path / "discover_hosts.sh"
    script.write_text(text(job(options={"slotsPerWorker": 2}), script.name, "worker-1", "worker-0"))
    done = subprocess.run(["sh", str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "J-worker-0:2\nJ-worker-1:2\n"


def test_the_agent_of_a_cluster_is_kubectl() -> None:
    assert text(job(), "kubexec.sh") == (
        "#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n"
        '/opt/kube/kubectl exec ${POD_NAME} -- /bin/sh -c "$*"'
    )
    assert text(job(options={"mainContainer": "mpi"}), "kubexec.sh").endswith(
        '/opt/kube/kubectl exec ${POD_NAME} --container mpi -- /bin/sh -c "$*"'
    )


def test_scripts_can_be_run_and_the_host_file_cannot() -> None:
    one = job()
    files = FRAMEWORK.files(one, Cluster(one, FRAMEWORK), [])
    assert {name: file.executable for name, file in files.items()} == {
        "hostfile": False,
        "kubexec.sh": True,
        "discover_hosts.sh": True,
    }


@pytest.mark.parametrize(("workers", "slots", "processes"), [(2, None, 2), (3, 2, 6), (0, 4, 4)])
def test_a_script_is_launched_with_a_process_in_each_slot(
    workers: int, slots: int | None, processes: int
) -> None:
    one = job(workers, options={} if slots is None else {"slotsPerWorker": slots})
    command = ("python", "train.py", "--epochs", "3")
    assert FRAMEWORK.launch(one, LAUNCHER, command) == (
        "mpirun",
        "-np",
        str(processes),
        *command,
    )


def test_workers_wait_and_a_launcher_of_no_command_runs_its_image() -> None:
    assert FRAMEWORK.launch(job(), WORKER, ("python", "train.py")) == ("sleep", "365d")
    assert FRAMEWORK.launch(job(), WORKER, ()) == ("sleep", "365d")
    assert FRAMEWORK.launch(job(), LAUNCHER, ()) == ()


def test_the_launchers_pod_is_kubeflows() -> None:
    made = pod(job(namespace="NS"), "launcher-0")
    assert made["metadata"] == {"name": "J-launcher"}
    spec = made["spec"]
    assert spec["serviceAccountName"] == "J-launcher"
    (main,) = spec["containers"]
    assert [(one["name"], one["mountPath"]) for one in main["volumeMounts"]] == [
        ("mpi-job-kubectl", "/opt/kube"),
        ("mpi-job-config", "/etc/mpi"),
    ]
    kubectl, config = spec["volumes"]
    assert kubectl == {"name": "mpi-job-kubectl", "emptyDir": {}}
    assert config["configMap"]["name"] == "J-config"
    assert {one["key"]: one["mode"] for one in config["configMap"]["items"]} == {
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


def test_a_service_account_of_the_manifest_stands() -> None:
    own = template(FRAMEWORK)
    own["spec"]["serviceAccountName"] = "mine"
    assert pod(job(pod=own), "launcher-0")["spec"]["serviceAccountName"] == "mine"


def test_a_workers_pod_waits_and_sees_only_the_agent() -> None:
    given = template(FRAMEWORK)
    spec = pod(job(pod=given), "worker-1")["spec"]
    (main,) = spec["containers"]
    assert (main["command"], main["args"]) == (["sleep"], ["365d"])
    (volume,) = spec["volumes"]
    assert [one["key"] for one in volume["configMap"]["items"]] == ["kubexec.sh"]
    assert "command" not in given["spec"]["containers"][0], "the template was changed"


def test_a_workers_own_command_stands() -> None:
    own = template(FRAMEWORK)
    own["spec"]["containers"][0]["command"] = ["/usr/sbin/sshd", "-De"]
    (main,) = pod(job(pod=own), "worker-0")["spec"]["containers"]
    assert main["command"] == ["/usr/sbin/sshd", "-De"]
    assert "args" not in main


def test_sound_jobs_have_no_findings() -> None:
    fine = job(options={"slotsPerWorker": 2, "mainContainer": "mpi", "cleanPodPolicy": "All"})
    assert findings(FRAMEWORK, fine) == []


@pytest.mark.parametrize("slots", [0, -1, "two", 1.5, True])
def test_slots_that_cannot_be(slots: object) -> None:
    found = findings(FRAMEWORK, job(options={"slotsPerWorker": slots}))
    assert found == [f"spec.slotsPerWorker: cannot be {slots!r}"]


def test_launchers_and_containers_that_cannot_be() -> None:
    bad = job_of(FRAMEWORK, {"Launcher": 2, "Worker": 1}, options={"mainContainer": "main"})
    assert findings(FRAMEWORK, bad) == [
        "spec.mainContainer: no worker has a container 'main'",
        "spec.mpiReplicaSpecs[Launcher].replicas: must be 1",
    ]
