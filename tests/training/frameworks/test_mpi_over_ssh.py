"""Pods and objects of MPIJobs v2beta1 on a cluster, as the MPI operator 0.8.2 makes them.

The cases are those of its ``mpi_job_controller_test.go``. Only these differ: a failed launcher gets
a new pod (``Never``), the server does not check the modes of a volume that it cannot change, labels
have the replica, and Open MPI 5 gets its own variables.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from danlu.training.framework import Framework
from danlu.training.frameworks.mpi.v2beta1 import V2BETA1
from danlu.training.manifest import read_job
from danlu.training.rendering import parse_replica_id, render_pod
from danlu.training.topology import ServiceTopology
from danlu.training.types import Job, ReplicaId, ReplicaType
from tests.training.frameworks.topology import replica_of

PREFIX = "training.kubeflow.org"
OPEN_MPI = [
    ("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
    ("OMPI_MCA_orte_default_hostfile", "/etc/mpi/hostfile"),
    ("OMPI_MCA_plm_rsh_args", "-o ConnectionAttempts=10"),
]
INTEL = [
    ("I_MPI_HYDRA_HOST_FILE", "/etc/mpi/hostfile"),
    ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS", "-o ConnectionAttempts=10"),
]
MPICH = [
    ("HYDRA_HOST_FILE", "/etc/mpi/hostfile"),
    ("HYDRA_LAUNCH_EXTRA_ARGS", "-o ConnectionAttempts=10"),
]
NO_GPU = [("NVIDIA_VISIBLE_DEVICES", ""), ("NVIDIA_DRIVER_CAPABILITIES", "")]
LAUNCHER_ROLE, WORKER_ROLE = [("K_MPI_JOB_ROLE", "launcher")], [("K_MPI_JOB_ROLE", "worker")]
SSH_ITEMS = [
    {"key": "ssh-privatekey", "path": "id_rsa"},
    {"key": "ssh-publickey", "path": "id_rsa.pub"},
    {"key": "ssh-publickey", "path": "authorized_keys"},
]
CONFIG_ITEMS = [
    {"key": "hostfile", "path": "hostfile", "mode": 0o444},
    {"key": "discover_hosts.sh", "path": "discover_hosts.sh", "mode": 0o555},
]
#: What danlu adds to the launcher's variables, unless the manifest sets them.
ADDED = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "PRTE_MCA_")


def read(
    name: str = "foo",
    namespace: str = "bar",
    launcher: dict[str, Any] | None = None,
    worker: dict[str, Any] | None = None,
    workers: int = 13,
    **options: Any,
) -> Job:
    container = {"name": "main", "image": "example/pi:1"}

    def describe(spec: dict[str, Any] | None) -> dict[str, Any]:
        return {"template": {"spec": {"containers": [container]}, **(spec or {})}}

    replicas = {"Launcher": describe(launcher), "Worker": {**describe(worker), "replicas": workers}}
    document = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**options, "mpiReplicaSpecs": replicas},
    }
    return read_job(copy.deepcopy(document), V2BETA1)


def render(job: Job, replica: str, *, domain: str = "") -> dict[str, Any]:
    framework: Framework = V2BETA1
    topology = ServiceTopology(job, framework, domain)
    return render_pod(job, framework, replica_of(replica, framework), topology)


def variables(pod: dict[str, Any]) -> list[tuple[str, str]]:
    (first, *_) = pod["spec"]["containers"]
    found = [(variable["name"], variable["value"]) for variable in first["env"]]
    return [pair for pair in found if not pair[0].startswith(ADDED)]


def labels(pod: dict[str, Any]) -> dict[str, str]:
    return {
        key.removeprefix(f"{PREFIX}/"): value for key, value in pod["metadata"]["labels"].items()
    }


def ssh_volume(secret: str, mode: int | None = 0o600) -> dict[str, Any]:
    source = {"secretName": secret, "items": SSH_ITEMS}
    return {
        "name": "ssh-auth",
        "secret": source if mode is None else {**source, "defaultMode": mode},
    }


def config_volume(name: str) -> dict[str, Any]:
    return {"name": "mpi-job-config", "configMap": {"name": name, "items": CONFIG_ITEMS}}


def mount(name: str, path: str) -> dict[str, str]:
    return {"name": name, "mountPath": path}


# -- TestNewLauncherAndWorker ---------------------------------------------------------------------


def test_launcher_and_worker_by_default() -> None:
    launcher, worker = render(read(), "launcher-0"), render(read(), "worker-0")
    assert launcher["metadata"]["name"] == "foo-launcher"
    assert launcher["metadata"]["namespace"] == "bar"
    common = {"operator-name": "mpi-operator", "job-name": "foo"}
    assert labels(launcher) == {
        **common,
        "job-role": "launcher",
        "replica-type": "launcher",
        "replica-index": "0",
    }
    spec = launcher["spec"]
    assert (spec["hostname"], spec["subdomain"]) == ("foo-launcher", "foo")
    assert (spec["restartPolicy"], "dnsConfig" in spec) == ("Never", False)
    slots = [("OMPI_MCA_orte_set_default_slots", "1")]
    assert variables(launcher) == [*LAUNCHER_ROLE, *OPEN_MPI, *slots, *NO_GPU]
    (container,) = spec["containers"]
    assert container["volumeMounts"] == [
        mount("ssh-auth", "/root/.ssh"),
        mount("mpi-job-config", "/etc/mpi"),
    ]
    assert "command" not in container
    assert spec["volumes"] == [ssh_volume("foo-ssh"), config_volume("foo-config")]

    assert worker["metadata"]["name"] == "foo-worker-0"
    assert labels(worker) == {
        **common,
        "job-role": "worker",
        "replica-type": "worker",
        "replica-index": "0",
    }
    spec = worker["spec"]
    assert (spec["hostname"], spec["subdomain"]) == ("foo-worker-0", "foo")
    assert spec["dnsConfig"] == {"searches": ["foo.bar.svc.cluster.local"]}
    assert spec["restartPolicy"] == "Never"
    (container,) = spec["containers"]
    assert container["command"] == ["/usr/sbin/sshd", "-De", "-oStrictModes=no"]
    assert container["volumeMounts"] == [mount("ssh-auth", "/root/.ssh")]
    assert variables(worker) == WORKER_ROLE
    assert spec["volumes"] == [ssh_volume("foo-ssh")]


def test_launcher_as_worker_is_the_first_of_the_hosts() -> None:
    job = read(runLauncherAsWorker=True)
    launcher, worker = render(job, "launcher-0"), render(job, "worker-0")
    slots = [("OMPI_MCA_orte_set_default_slots", "1")]
    assert variables(launcher) == [*LAUNCHER_ROLE, *OPEN_MPI, *slots]
    assert (labels(launcher)["replica-index"], labels(worker)["replica-index"]) == ("0", "1")
    for pod, replica in ((launcher, "launcher-0"), (worker, "worker-0")):
        found = parse_replica_id(pod["metadata"]["labels"], V2BETA1)
        assert found == replica_of(replica, V2BETA1)


def test_overrides_of_the_pod_templates_are_kept() -> None:
    given = [{"name": "FOO", "value": "bar"}]
    launcher = {
        "metadata": {"labels": {"foo": "bar"}},
        "spec": {
            "hostNetwork": True,
            "containers": [
                {
                    "name": "a",
                    "image": "example/pi:1",
                    "env": given,
                    "securityContext": {"runAsUser": 1000},
                    "volumeMounts": [mount("fool-vol", "/mnt/foo")],
                },
                {"name": "b", "image": "example/proxy:1"},
            ],
            "volumes": [{"name": "fool-vol", "emptyDir": {}}],
        },
    }
    worker = {
        "spec": {
            "hostNetwork": True,
            "containers": [
                {"name": "a", "image": "example/pi:1", "command": ["/entrypoint.sh"], "env": given}
            ],
        }
    }
    job = read(
        "bar",
        "foo",
        launcher,
        worker,
        sshAuthMountPath="/home/mpiuser/.ssh",
        slotsPerWorker=5,
        mpiImplementation="Intel",
    )
    pod = render(job, "launcher-0")
    spec, (main, other) = pod["spec"], pod["spec"]["containers"]
    assert (spec["dnsPolicy"], spec["hostname"], spec["subdomain"]) == (
        "ClusterFirstWithHostNet",
        "bar-launcher",
        "bar",
    )
    assert labels(pod)["foo"] == "bar"
    slots = [("I_MPI_PERHOST", "5")]
    assert variables(pod) == [("FOO", "bar"), *LAUNCHER_ROLE, *INTEL, *slots, *NO_GPU]
    assert main["volumeMounts"] == [
        mount("fool-vol", "/mnt/foo"),
        mount("ssh-auth", "/home/mpiuser/.ssh"),
        mount("mpi-job-config", "/etc/mpi"),
    ]
    assert main["securityContext"] == {"runAsUser": 1000}
    assert other == {"name": "b", "image": "example/proxy:1"}
    assert spec["volumes"][1:] == [ssh_volume("bar-ssh", None), config_volume("bar-config")]

    pod = render(job, "worker-12")
    (main,) = pod["spec"]["containers"]
    assert pod["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert pod["spec"]["dnsConfig"] == {"searches": ["bar.foo.svc.cluster.local"]}
    assert main["command"] == ["/entrypoint.sh"]
    assert variables(pod) == [("FOO", "bar"), *WORKER_ROLE]
    assert labels(pod)["replica-index"] == "12"


def test_arguments_of_a_worker_are_its_own_program() -> None:
    container = {"name": "a", "image": "example/pi:1", "args": ["serve"]}
    pod = render(read(worker={"spec": {"containers": [container]}}), "worker-0")
    (main,) = pod["spec"]["containers"]
    assert ("command" in main, main["args"]) == (False, ["serve"])


def test_search_domains_of_a_worker_are_kept() -> None:
    container = {"name": "a", "image": "example/pi:1"}
    spec = {"containers": [container], "dnsConfig": {"searches": ["example"]}}
    pod = render(read(worker={"spec": spec}), "worker-0", domain="a.b")
    assert pod["spec"]["dnsConfig"] == {"searches": ["example", "foo.bar.svc.a.b"]}


def test_variables_of_mpich() -> None:
    pod = render(read(mpiImplementation="MPICH"), "launcher-0")
    assert variables(pod) == [*LAUNCHER_ROLE, *MPICH, *NO_GPU]


def test_open_mpi_5_finds_hosts_and_slots_in_its_own_variables() -> None:
    """Without them all ranks run in the launcher (kubeflow/mpi-operator#842)."""

    def find_added(job: Job) -> dict[str, str]:
        (main,) = render(job, "launcher-0")["spec"]["containers"]
        return {
            variable["name"]: variable["value"]
            for variable in main["env"]
            if variable["name"].startswith("PRTE")
        }

    assert find_added(read(slotsPerWorker=3)) == {
        "PRTE_MCA_prte_keep_fqdn_hostnames": "false",
        "PRTE_MCA_prte_default_hostfile": "/etc/mpi/hostfile",
        "PRTE_MCA_plm_ssh_args": "-o ConnectionAttempts=10",
        "PRTE_MCA_prte_set_default_slots": "3",
    }
    assert find_added(read(mpiImplementation="Intel")) == {}
    env = [{"name": "PRTE_MCA_plm_ssh_args", "value": "-4"}]
    container = {"name": "a", "image": "example/pi:1", "env": env}
    assert find_added(read(launcher={"spec": {"containers": [container]}}))[
        "PRTE_MCA_plm_ssh_args"
    ] == ("-4")


# -- TestNewConfigMap, TestUpdateDiscoverHostsInConfigMap -----------------------------------------


def files(job: Job, *running: str, domain: str = "") -> dict[str, str]:
    seen = [replica_of(name, V2BETA1) for name in running]
    made = V2BETA1.files(job, ServiceTopology(job, V2BETA1, domain), seen)
    return {name: file.text for name, file in made.items()}


@pytest.mark.parametrize(
    ("options", "workers", "domain", "expected"),
    [
        ({}, 2, "", ["foo-worker-0.foo.bar.svc slots=1", "foo-worker-1.foo.bar.svc slots=1"]),
        (
            {"slotsPerWorker": 10, "runLauncherAsWorker": True},
            1,
            "",
            ["foo-launcher.foo.bar.svc slots=10", "foo-worker-0.foo.bar.svc slots=10"],
        ),
        (
            {"slotsPerWorker": 10},
            1,
            "cluster.local",
            ["foo-worker-0.foo.bar.svc.cluster.local slots=10"],
        ),
        (
            {"mpiImplementation": "Intel", "slotsPerWorker": 10},
            2,
            "",
            ["foo-worker-0.foo.bar.svc:10", "foo-worker-1.foo.bar.svc:10"],
        ),
        (
            {"mpiImplementation": "MPICH", "runLauncherAsWorker": True},
            1,
            "cluster.local",
            [
                "foo-launcher.foo.bar.svc.cluster.local:1",
                "foo-worker-0.foo.bar.svc.cluster.local:1",
            ],
        ),
    ],
)
def test_the_host_file_has_complete_names(
    options: dict[str, Any], workers: int, domain: str, expected: list[str]
) -> None:
    made = files(read(workers=workers, **options), domain=domain)
    assert made["hostfile"] == "".join(f"{line}\n" for line in expected)
    assert sorted(made) == ["discover_hosts.sh", "hostfile"]


def test_discovered_hosts_have_complete_names() -> None:
    job = read(runLauncherAsWorker=True)
    assert files(job, "worker-10", "worker-2", domain="cluster.local")["discover_hosts.sh"] == (
        "#!/bin/sh\n"
        "echo foo-launcher.foo.bar.svc.cluster.local\n"
        "echo foo-worker-10.foo.bar.svc.cluster.local\n"
        "echo foo-worker-2.foo.bar.svc.cluster.local\n"
    )


def test_objects_of_a_job() -> None:
    job = read()
    service, secret = V2BETA1.extra_objects(job, ServiceTopology(job, V2BETA1))
    assert service["metadata"] == {"name": "foo", "labels": {"app": "foo"}}
    assert service["spec"] == {
        "clusterIP": "None",
        "selector": {f"{PREFIX}/operator-name": "mpi-operator", f"{PREFIX}/job-name": "foo"},
        "publishNotReadyAddresses": True,
    }
    assert secret == {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/ssh-auth",
        "metadata": {"name": "foo-ssh", "labels": {"app": "foo"}},
    }
    for replica in (ReplicaId(ReplicaType("Launcher"), 0), ReplicaId(ReplicaType("Worker"), 1)):
        selected = labels(render(job, str(replica)))
        assert (
            service["spec"]["selector"].items()
            <= {f"{PREFIX}/{key}": value for key, value in selected.items()}.items()
        )
