"""What both versions of MPIJob share: a launcher whose ``mpirun`` starts processes in workers.

Hosts are named after their pods: MPI passes the name to its remote agent, ``kubexec.sh`` in the
topology's directory, and does not have to resolve it. A driver that reaches workers in its own way
replaces that file.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from danlu.training.framework import Framework, GeneratedFile, PodTemplate
from danlu.training.pod_template import (
    append_to,
    find_main_container,
    replace_container,
    replace_spec,
)
from danlu.training.types import Job, ReplicaId, ReplicaType, Topology

LAUNCHER = ReplicaType("Launcher")
WORKER = ReplicaType("Worker")

# File names of the operators' ConfigMap.
AGENT = "kubexec.sh"
HOSTFILE = "hostfile"
DISCOVER = "discover_hosts.sh"

EVICTED = "{evicted}/{expected} workers are evicted"
WAIT_COMMAND = ("sleep", "365d")
CONFIG_VOLUME = "mpi-job-config"
FILE_MODES = {AGENT: 0o555, DISCOVER: 0o555, HOSTFILE: 0o444}


class MpiBase(Framework):
    """A launcher, and the workers in which it starts processes."""

    name = "mpi"
    kind = "MPIJob"
    plural = "mpijobs"
    modules = ("horovod", "mpi4py")
    starts_processes = True
    replicas_field = "mpiReplicaSpecs"
    replica_types = (LAUNCHER, WORKER)
    driver_types = (LAUNCHER,)
    required_types = (LAUNCHER,)
    singleton_types = (LAUNCHER,)
    idle_types = (LAUNCHER,)
    server_types = (WORKER,)
    default_replicas = {WORKER: 0}
    any_container = True
    port_name = "mpi-port"
    port = 9999
    env_in_all_containers = False
    services = False
    single_version = True
    files_directory = "/etc/mpi"
    # Open MPI's daemon begins by removing its job's session directory, and with it that of another
    # daemon which shares the temporary directory (orte/mca/ess/base/ess_base_std_orted.c).
    needs_own_tmpdir = True
    # Open MPI 5's hierarchical collectives add up wrongly, and then hang, if hosts are one machine.
    one_machine_variables: ClassVar[Mapping[str, str]] = {"OMPI_MCA_coll": "^han"}

    @abstractmethod
    def launcher_computes(self, job: Job) -> bool:
        """Return whether the launcher is a host of processes, too."""

    @abstractmethod
    def render_hostfile(self, job: Job, topology: Topology) -> str:
        """Return the hosts with their slots."""

    @abstractmethod
    def render_discovery_script(
        self, job: Job, topology: Topology, running: Sequence[ReplicaId]
    ) -> str:
        """Return the script that lists the running workers, for Horovod's elastic mode."""

    def computes(self, job: Job, type: ReplicaType) -> bool:
        """Return whether processes run in the replicas of a type."""
        return type == WORKER or self.launcher_computes(job)

    def render_agent(self, job: Job) -> str:
        """Return the remote agent on a cluster; empty if ssh needs none."""
        return ""

    def pod_name(self, job: Job, replica: ReplicaId) -> str:
        """Return the name of a pod; the launcher's has no index (``newLauncher``)."""
        return f"{job.name}-launcher" if replica.type == LAUNCHER else f"{job.name}-{replica}"

    def files(
        self, job: Job, topology: Topology, running: Sequence[ReplicaId]
    ) -> Mapping[str, GeneratedFile]:
        """Return the host file, the remote agent, and Horovod's host discovery script."""
        agent = self.render_agent(job)
        script = self.render_discovery_script(job, topology, running)
        files = {
            HOSTFILE: GeneratedFile(self.render_hostfile(job, topology)),
            AGENT: GeneratedFile(agent, executable=True, agent=True),
            DISCOVER: GeneratedFile(script, executable=True),
        }
        if topology.on_cluster and not agent:
            del files[AGENT]
        return files

    def mount_files(
        self, template: PodTemplate, job: Job, directory: str, names: Sequence[str]
    ) -> PodTemplate:
        """Return the pod with these of :meth:`files` in a directory of its main container."""
        items = [{"key": name, "path": name, "mode": FILE_MODES[name]} for name in names]
        config_map = {"name": self.files_config_map(job), "items": items}
        volume = {"name": CONFIG_VOLUME, "configMap": config_map}
        return mount_volume(template, self.container, volume, directory)

    def list_hosts(self, job: Job) -> tuple[ReplicaId, ...]:
        """Return the hosts of processes, in the order of the host file."""
        launchers = job.replica_ids(LAUNCHER) if self.launcher_computes(job) else ()
        return (*launchers, *job.replica_ids(WORKER))

    def wrap_command(self, job: Job, type: ReplicaType, command: Sequence[str]) -> Sequence[str]:
        """Return ``mpirun`` with one process per slot for the launcher; workers wait."""
        if type == WORKER:
            return WAIT_COMMAND
        if not command:
            return ()
        hosts = max(len(self.list_hosts(job)), 1)
        return ("mpirun", "-np", str(slots_per_worker(job) * hosts), *command)

    def count_processes(self, job: Job, type: ReplicaType) -> int:
        """Return the slots of a host."""
        return slots_per_worker(job) if self.computes(job, type) else 1


def mount_volume(
    template: PodTemplate, container: str, volume: Mapping[str, Any], path: str
) -> PodTemplate:
    """Return the pod with a volume at a path of the container of this name."""
    mount = {"name": volume["name"], "mountPath": path}
    main = find_main_container(template, container)
    template = replace_container(template, append_to(main, "volumeMounts", mount), main)
    return replace_spec(template, append_to(template["spec"], "volumes", volume))


def slots_per_worker(job: Job) -> int:
    """Return the number of processes that a host may have."""
    slots = job.options.get("slotsPerWorker")
    return 1 if slots is None else int(slots)
