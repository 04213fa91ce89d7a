"""MPIJob ``kubeflow.org/v2beta1``: the launcher is a batch Job that reaches workers with ssh.

Fields, defaults, files and variables are those of the MPI operator 0.8.2
(``pkg/apis/kubeflow/v2beta1``, ``pkg/controller/mpi_job_controller.go``). Their launcher is a pod,
not a batch Job. On this machine nothing serves ssh: each implementation's variables name the agent,
which takes ssh's options.

``K_MPI_JOB_ROLE`` is not set there: for the launcher, the entry point of the operator's base images
asks ``nslookup``, which does not read ``/etc/hosts``, for every host until it gives up
(``build/base/entrypoint.sh``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import structs

from danlu.training.framework import (
    QUALIFIED_MESSAGES,
    CountsByType,
    EnvVar,
    FieldError,
    PodTemplate,
    ReplicaCounts,
    Verdict,
    policy_rule,
)
from danlu.training.frameworks.mpi import ssh
from danlu.training.frameworks.mpi.base import (
    AGENT,
    DISCOVER,
    EVICTED,
    HOSTFILE,
    LAUNCHER,
    WAIT_COMMAND,
    WORKER,
    MpiBase,
    mount_volume,
    slots_per_worker,
)
from danlu.training.frameworks.mpi.ssh import INTEL, MPICH, OPEN_MPI
from danlu.training.pod_template import (
    append_to,
    env_unless_declared,
    find_main_container,
    pod_spec,
    replace_container,
    replace_metadata,
    replace_spec,
)
from danlu.training.rendering import JOB_NAME, JOB_ROLE, OPERATOR_NAME, OWN_INDEX, REPLICA_INDEX
from danlu.training.types import (
    ConditionType,
    Dependency,
    Job,
    ReplicaId,
    ReplicaType,
    RestartPolicy,
    Topology,
)

AT_STARTUP = "AtStartup"
# A Pod's search domain must be complete, and a pod does not know that of its cluster.
DEFAULT_DOMAIN = "cluster.local"
ROLE_VARIABLE = "K_MPI_JOB_ROLE"
KEY_VOLUME = "ssh-auth"


class MpiV2beta1(MpiBase):
    """The MPIJob of the MPI operator."""

    api_version = "kubeflow.org/v2beta1"
    manager = "kubeflow.org/mpi-operator"
    operator_name = "mpi-operator"
    spec_options = {
        "slotsPerWorker": {"type": "integer", "format": "int32", "minimum": 0, "default": 1},
        "runLauncherAsWorker": {"type": "boolean", "default": False},
        "sshAuthMountPath": {"type": "string", "default": ssh.ROOT_DIRECTORY},
        # Neither the CRD nor the controller knows the other value, WaitForWorkersReady.
        "launcherCreationPolicy": {"type": "string", "default": AT_STARTUP},
        "mpiImplementation": {
            "type": "string",
            "enum": ssh.IMPLEMENTATIONS,
            "default": OPEN_MPI,
        },
    }
    cluster_options = ("sshAuthMountPath",)
    restart_policies = (RestartPolicy.NEVER, RestartPolicy.ON_FAILURE)
    batch_types = (LAUNCHER,)
    deadline_reason = "DeadlineExceeded"
    backoff_reason = "BackoffLimitExceeded"
    container = ""
    operator_rules = (
        policy_rule("", ["configmaps"], ["create", "delete", "get", "patch"]),
        policy_rule("", ["secrets"], ["create", "patch"]),
    )
    messages = {
        LAUNCHER: QUALIFIED_MESSAGES,
        WORKER: structs.replace(QUALIFIED_MESSAGES, evicted=EVICTED),
    }

    def evaluate(self, job: Job, counts: CountsByType) -> Verdict | None:
        """Return the launcher's outcome; of the workers, only evicted ones fail the job."""
        launcher = counts.get(LAUNCHER, ReplicaCounts())
        workers = counts.get(WORKER, ReplicaCounts())
        if launcher.succeeded:
            return Verdict(ConditionType.SUCCEEDED, LAUNCHER)
        if workers.evicted:
            return Verdict(ConditionType.FAILED, WORKER)
        if launcher.failed:
            return Verdict(ConditionType.FAILED, LAUNCHER)
        if launcher.active and workers.active == workers.expected:
            return Verdict(ConditionType.RUNNING, LAUNCHER)
        return None

    def list_dependencies(self, job: Job, type: ReplicaType) -> Sequence[Dependency]:
        """Return that the launcher waits for the workers, unless it starts with them.

        If it has failed, it waits in any case: while images of workers are pulled, it must not use
        up its restarts.
        """
        policy = job.options.get("launcherCreationPolicy") or AT_STARTUP
        failed = job.status.record(ReplicaId(LAUNCHER, 0)).restarts > 0
        waits = type == LAUNCHER and WORKER in job.replicas and (failed or policy != AT_STARTUP)
        return (Dependency(WORKER, "Ready"),) if waits else ()

    def validate(self, job: Job) -> Iterator[FieldError]:
        """Yield errors of the numbers of replicas; workers without a number are none."""
        yield from super().validate(job)
        yield from self.check_number(job, WORKER)

    def build_env(self, job: Job, replica: ReplicaId, topology: Topology) -> list[EnvVar]:
        """Return where the job's MPI finds its hosts, and what starts processes there."""
        role: list[EnvVar] = [(ROLE_VARIABLE, replica.type.lower())] if topology.on_cluster else []
        if replica.type != LAUNCHER:
            return role
        hosts, slots = f"{topology.directory(replica)}/{HOSTFILE}", str(slots_per_worker(job))
        optional: list[EnvVar] = [
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ]
        implementation = _find_implementation(job)
        if topology.on_cluster:
            result = role + ssh.list_variables(implementation, hosts=hosts, slots=slots)
            if implementation == OPEN_MPI:
                optional += ssh.list_prrte_variables(hosts=hosts, slots=slots)
        else:
            agent = f"{topology.directory(replica)}/{AGENT}"
            result = self._list_agent_variables(implementation, agent, hosts=hosts, slots=slots)
        if not self.launcher_computes(job):
            # NVIDIA's container runtime would give the launcher all GPUs of the node.
            result += [("NVIDIA_VISIBLE_DEVICES", ""), ("NVIDIA_DRIVER_CAPABILITIES", "")]
        return result + env_unless_declared(job, replica, self.container, optional)

    def _list_agent_variables(
        self, implementation: str, agent: str, *, hosts: str, slots: str
    ) -> list[EnvVar]:
        variables: Mapping[str, list[EnvVar]] = {
            OPEN_MPI: [
                ("OMPI_MCA_orte_keep_fqdn_hostnames", "true"),
                ("OMPI_MCA_orte_default_hostfile", hosts),
                ("OMPI_MCA_orte_set_default_slots", slots),
                ("OMPI_MCA_plm_rsh_agent", agent),
                # Open MPI 5 does not read these: all ranks would run in the launcher
                # (kubeflow/mpi-operator#842).
                ("PRTE_MCA_prte_keep_fqdn_hostnames", "true"),
                ("PRTE_MCA_prte_default_hostfile", hosts),
                ("PRTE_MCA_plm_ssh_agent", agent),
            ],
            INTEL: [
                ("I_MPI_HYDRA_HOST_FILE", hosts),
                ("I_MPI_PERHOST", slots),
                ("I_MPI_HYDRA_BOOTSTRAP", "rsh"),
                ("I_MPI_HYDRA_BOOTSTRAP_EXEC", agent),
            ],
            MPICH: [
                ("HYDRA_HOST_FILE", hosts),
                ("HYDRA_LAUNCHER", "rsh"),
                ("HYDRA_LAUNCHER_EXEC", agent),
            ],
        }
        return variables[implementation]

    def adapt_command(self, job: Job, type: ReplicaType, command: Sequence[str]) -> Sequence[str]:
        """Return the command; a worker waits instead of running the ssh server."""
        if type == WORKER and command and command[0].rpartition("/")[2] == "sshd":
            return WAIT_COMMAND
        return super().adapt_command(job, type, command)

    def launcher_computes(self, job: Job) -> bool:
        """Return ``runLauncherAsWorker``."""
        return bool(job.options.get("runLauncherAsWorker"))

    def render_hostfile(self, job: Job, topology: Topology) -> str:
        """Return the hosts by their qualified names, in the implementation's format."""
        separator = " slots=" if _find_implementation(job) == OPEN_MPI else ":"
        end = f"{separator}{slots_per_worker(job)}\n"
        hosts = self.list_hosts(job)
        return "".join(self.qualified_name(job, topology, host) + end for host in hosts)

    def render_discovery_script(
        self, job: Job, topology: Topology, running: Sequence[ReplicaId]
    ) -> str:
        """Return the script that lists the hosts that run, sorted and without slots."""
        names = sorted(
            self.qualified_name(job, topology, host)
            for host in job.replica_ids(WORKER)
            if host in running
        )
        if self.launcher_computes(job):
            names.insert(0, self.qualified_name(job, topology, ReplicaId(LAUNCHER, 0)))
        return "#!/bin/sh\n" + "".join(f"echo {name}\n" for name in names)

    def subdomain(self, job: Job) -> str:
        """Return the Service of the launcher and the workers."""
        return job.name

    def qualified_name(self, job: Job, topology: Topology, replica: ReplicaId) -> str:
        """Return the name of a replica in the host file."""
        if topology.on_cluster:
            return topology.host(replica, qualified=True)
        return f"{self.pod_name(job, replica)}.{self.subdomain(job)}.{job.namespace}.svc"

    # -- on a cluster

    def mark_pod(self, job: Job, replica: ReplicaId, template: PodTemplate) -> PodTemplate:
        """Return the pod with the operator's role, and the rank of its host as index."""
        labels = {**template["metadata"]["labels"], JOB_ROLE: replica.type.lower()}
        if replica.type == WORKER and self.launcher_computes(job):
            # Kueue needs one index per pod of a gang: the launcher has 0 (workerReplicaIndexLabel).
            labels |= {REPLICA_INDEX: str(replica.index + 1), OWN_INDEX: str(replica.index)}
        return replace_metadata(template, {"labels": labels})

    def mutate_pod(
        self, job: Job, replica: ReplicaId, topology: Topology, template: PodTemplate
    ) -> PodTemplate:
        """Mount keys and files, and give the pod the name of its host; workers serve ssh."""
        host = self.pod_name(job, replica)
        fields: dict[str, Any] = {"hostname": host, "subdomain": self.subdomain(job)}
        if pod_spec(template).get("hostNetwork"):
            fields["dnsPolicy"] = "ClusterFirstWithHostNet"
        if replica.type == WORKER:
            # Hydra's processes know the launcher by its host name only.
            _, _, domain = topology.host(replica, qualified=True).partition(".")
            search = f"{domain}.{DEFAULT_DOMAIN}" if domain.endswith(".svc") else domain
            given = pod_spec(template).get("dnsConfig") or {}
            fields["dnsConfig"] = append_to(given, "searches", search)
            template = self._serve_ssh(template)
        path = job.options.get("sshAuthMountPath") or ssh.ROOT_DIRECTORY
        # Another user could not read the files, which belong to root.
        mode = 0o600 if path == ssh.ROOT_DIRECTORY else None
        keys = ssh.key_volume(KEY_VOLUME, _name_secret(job), mode=mode)
        template = mount_volume(replace_spec(template, fields), self.container, keys, path)
        if replica.type == WORKER:
            return template
        directory = topology.directory(replica)
        return self.mount_files(template, job, directory, (HOSTFILE, DISCOVER))

    def _serve_ssh(self, template: PodTemplate) -> PodTemplate:
        main = find_main_container(template, self.container)
        if main.get("command") or main.get("args"):
            return template
        return replace_container(template, {**main, "command": [*ssh.SERVER]}, main)

    def extra_objects(self, job: Job, topology: Topology) -> list[Mapping[str, Any]]:
        """Return the headless Service of all replicas, and the Secret of their keys.

        The Service publishes addresses that are not ready: the launcher calls its workers as soon
        as they run.
        """
        labels = {"app": job.name}
        selector = {OPERATOR_NAME: self.operator_name, JOB_NAME: job.name}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.subdomain(job), "labels": labels},
            "spec": {
                "clusterIP": "None",
                "selector": selector,
                "publishNotReadyAddresses": True,
            },
        }
        return [service, ssh.describe_secret({"name": _name_secret(job), "labels": labels})]


def _name_secret(job: Job) -> str:
    return f"{job.name}-ssh"


def _find_implementation(job: Job) -> str:
    return job.options.get("mpiImplementation") or OPEN_MPI


V2BETA1 = MpiV2beta1()
