"""The policy ``mpi``: a launcher whose ``mpirun`` starts processes in the nodes.

Variables and files are those of an MPIJob of Open MPI, with the further variables that Kubeflow
Trainer 2.4 sets; the names are those that JobSet gives pods, and on a cluster those of the
plug-in's objects (``pkg/runtime/framework/plugins/{mpi,jobset}``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from danlu.training.framework import EnvVar, GeneratedFile, PodTemplate
from danlu.training.frameworks.mpi import ssh
from danlu.training.frameworks.mpi.base import FILE_MODES, HOSTFILE, mount_volume
from danlu.training.frameworks.mpi.base import LAUNCHER as MPI_LAUNCHER
from danlu.training.frameworks.mpi.base import WORKER as MPI_WORKER
from danlu.training.frameworks.mpi.v2beta1 import MpiV2beta1
from danlu.training.frameworks.train_job import (
    FRAMEWORK,
    INITIALIZERS,
    LAUNCHER,
    MPI,
    NODE,
    TrainJobFramework,
)
from danlu.training.types import Job, ReplicaId, ReplicaType, Topology


class _NamedByJobSet(MpiV2beta1):
    """The MPI operator's job with the names that JobSet gives its pods."""

    def pod_name(self, job: Job, replica: ReplicaId) -> str:
        """Return the name of the pod, without its random end."""
        type = LAUNCHER if replica.type == MPI_LAUNCHER else NODE
        return f"{job.name}-{type}-0-{replica.index}"

    def qualified_name(self, job: Job, topology: Topology, replica: ReplicaId) -> str:
        """Return the name in the job's subdomain."""
        return f"{self.pod_name(job, replica)}.{FRAMEWORK.subdomain(job)}"


_MPI = _NamedByJobSet()
_KEY_VOLUME, _CONFIG_VOLUME = "mpi-ssh-auth", "mpi-hostfile"


class MpiTrainJobFramework(TrainJobFramework):
    """A launcher whose ``mpirun`` starts processes in the nodes: the policy ``mpi``.

    Variables and files are those of an MPIJob of Open MPI.
    """

    replica_types = (*INITIALIZERS, NODE, LAUNCHER)
    node_types = (NODE, LAUNCHER)
    driver_types = (LAUNCHER,)
    default_type = LAUNCHER
    required_types = (NODE, LAUNCHER)
    singleton_types = (LAUNCHER,)
    idle_types = (*INITIALIZERS, LAUNCHER)
    server_types = (NODE,)
    files_directory = _MPI.files_directory
    needs_own_tmpdir = _MPI.needs_own_tmpdir
    one_machine_variables = _MPI.one_machine_variables

    def build_env(self, job: Job, replica: ReplicaId, topology: Topology) -> Sequence[EnvVar]:
        """Return where the launcher's Open MPI finds its hosts, and what starts processes there."""
        if replica.type != LAUNCHER:
            return ()
        slots = str(job.options["processes"])
        if topology.on_cluster:
            hosts = f"{topology.directory(replica)}/{HOSTFILE}"
            return [
                *ssh.list_variables(ssh.OPEN_MPI, hosts=hosts, slots=slots),
                *ssh.list_prrte_variables(hosts=hosts, slots=slots),
            ]
        viewed = _MpiTopology(topology)
        common = _MPI.build_env(_view_as_mpi_job(job), ReplicaId(MPI_LAUNCHER, 0), viewed)
        added: dict[str, Any] = {
            # danlu's agent takes ssh's arguments, too.
            "OMPI_MCA_plm_rsh_args": ssh.ARGUMENTS,
            "PRTE_MCA_prte_keep_fqdn_hostnames": "false",
            "PRTE_MCA_prte_set_default_slots": slots,
            "PRTE_MCA_plm_ssh_args": ssh.ARGUMENTS,
        }
        return [*(dict(common) | added).items()]

    def files(
        self, job: Job, topology: Topology, running: Sequence[ReplicaId]
    ) -> Mapping[str, GeneratedFile]:
        """Return those of an MPIJob; on a cluster only its file of hosts."""
        hosts = [
            ReplicaId(_MPI_TYPES[each.type], each.index)
            for each in running
            if each.type in _MPI_TYPES
        ]
        files = _MPI.files(_view_as_mpi_job(job), _MpiTopology(topology), hosts)
        return {HOSTFILE: files[HOSTFILE]} if topology.on_cluster else files

    def files_config_map(self, job: Job) -> str:
        """Return the name of the plug-in's ConfigMap."""
        return f"{job.name}-mpi-hostfile"

    def mutate_pod(
        self, job: Job, replica: ReplicaId, topology: Topology, template: PodTemplate
    ) -> PodTemplate:
        """Return the pod with its name, and keys and hosts in its container of this name."""
        template = super().mutate_pod(job, replica, topology, template)
        if replica.type not in self.node_types:
            return template
        path = job.options.get("sshAuthMountPath") or ssh.ROOT_DIRECTORY
        # The plug-in's. In root's own directory ssh refuses a key that a group can read.
        own = path == ssh.ROOT_DIRECTORY
        keys = ssh.key_volume(
            _KEY_VOLUME, _name_secret(job), mode=0o400, modes=(0o600 if own else 0o640, 0o644)
        )
        template = mount_volume(template, self.container, keys, path)
        if replica.type == NODE:
            return template
        items = [{"key": HOSTFILE, "path": HOSTFILE, "mode": FILE_MODES[HOSTFILE]}]
        files = {"name": self.files_config_map(job), "items": items}
        hosts = {"name": _CONFIG_VOLUME, "configMap": files}
        return mount_volume(template, self.container, hosts, topology.directory(replica))

    def extra_objects(self, job: Job, topology: Topology) -> Sequence[Mapping[str, Any]]:
        """Return the job's objects, and the Secret of its keys."""
        secret = ssh.describe_secret({"name": _name_secret(job)}, immutable=True)
        return [*super().extra_objects(job, topology), secret]

    def adapt_command(self, job: Job, type: ReplicaType, command: Sequence[str]) -> Sequence[str]:
        """Return the command; a node waits instead of running the ssh server."""
        if type != NODE:
            return command
        return _MPI.adapt_command(_view_as_mpi_job(job), MPI_WORKER, command)

    def computes(self, job: Job, type: ReplicaType) -> bool:
        """Return whether a replica is a host of processes."""
        return type == NODE or (type == LAUNCHER and bool(job.options.get("runLauncherAsNode")))

    def count_processes(self, job: Job, type: ReplicaType) -> int:
        """Return the slots of a host."""
        return int(job.options["processes"]) if self.computes(job, type) else 1


def _name_secret(job: Job) -> str:
    return f"{job.name}-mpi-ssh-auth"


_MPI_TYPES = {LAUNCHER: MPI_LAUNCHER, NODE: MPI_WORKER}


@dataclass(frozen=True)
class _MpiTopology(Topology):
    """The topology of a TrainJob for the replicas of its MPIJob."""

    topology: Topology

    @property
    def on_cluster(self) -> bool:
        return self.topology.on_cluster

    def host(self, replica: ReplicaId, *, qualified: bool = False) -> str:
        return self.topology.host(_find_node(replica), qualified=qualified)

    def port(self, replica: ReplicaId) -> int:
        return self.topology.port(_find_node(replica))

    def directory(self, replica: ReplicaId) -> str:
        return self.topology.directory(_find_node(replica))


def _find_node(replica: ReplicaId) -> ReplicaId:
    return ReplicaId(LAUNCHER if replica.type == MPI_LAUNCHER else NODE, replica.index)


def _view_as_mpi_job(job: Job) -> Job:
    """Return the MPIJob with the same launcher, nodes and slots."""
    return Job(
        kind=_MPI.kind,
        api_version=_MPI.api_version,
        name=job.name,
        namespace=job.namespace,
        replicas={_MPI_TYPES[type]: job.replicas[type] for type in (LAUNCHER, NODE)},
        options={
            "slotsPerWorker": job.options["processes"],
            "runLauncherAsWorker": job.options.get("runLauncherAsNode"),
            "mpiImplementation": ssh.OPEN_MPI,
            "subdomain": job.options.get("subdomain"),
        },
    )


MPI_FRAMEWORK = MpiTrainJobFramework()


def choose_framework(policy: str) -> TrainJobFramework:
    """Return what drives the TrainJobs with a policy."""
    return MPI_FRAMEWORK if policy == MPI else FRAMEWORK
