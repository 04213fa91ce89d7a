"""MPIJob ``kubeflow.org/v2beta1``: the launcher is a batch Job that reaches workers with ssh.

Fields, defaults, files and variables are those of the MPI operator 0.8.2
(``pkg/apis/kubeflow/v2beta1``, ``pkg/controller/mpi_job_controller.go``). On this machine there is
no ssh: each implementation's variables name the agent, which takes ssh's options.

``K_MPI_JOB_ROLE`` is not set: for the launcher, the entry point of the operator's base images asks
``nslookup``, which does not read ``/etc/hosts``, for every host until it gives up
(``build/base/entrypoint.sh``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import structs

from danlu.training.framework import (
    QUALIFIED_MESSAGES,
    CountsByType,
    EnvVar,
    FieldError,
    ReplicaCounts,
    Verdict,
)
from danlu.training.frameworks.mpi.base import (
    AGENT,
    EVICTED,
    HOSTFILE,
    LAUNCHER,
    WAIT_COMMAND,
    WORKER,
    MpiBase,
    slots_per_worker,
)
from danlu.training.pod_template import env_unless_declared
from danlu.training.types import (
    ConditionType,
    Dependency,
    Job,
    ReplicaId,
    ReplicaType,
    RestartPolicy,
    Topology,
)

OPEN_MPI, INTEL, MPICH = IMPLEMENTATIONS = ("OpenMPI", "Intel", "MPICH")
AT_STARTUP = "AtStartup"


class MpiV2beta1(MpiBase):
    """The MPIJob of the MPI operator."""

    api_version = "kubeflow.org/v2beta1"
    manager = "kubeflow.org/mpi-operator"
    operator_name = "mpi-operator"
    spec_options = {
        "slotsPerWorker": {"type": "integer", "format": "int32", "minimum": 0},
        "runLauncherAsWorker": {"type": "boolean"},
        "sshAuthMountPath": {"type": "string"},
        # Neither the CRD nor the controller knows the other value, WaitForWorkersReady.
        "launcherCreationPolicy": {"type": "string"},
        "mpiImplementation": {"type": "string", "enum": IMPLEMENTATIONS},
    }
    cluster_options = ("sshAuthMountPath",)
    restart_policies = (RestartPolicy.NEVER, RestartPolicy.ON_FAILURE)
    batch_types = (LAUNCHER,)
    container = ""
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
        """Return that the launcher waits for the workers, unless it starts with them."""
        policy = job.options.get("launcherCreationPolicy") or AT_STARTUP
        waits = type == LAUNCHER and WORKER in job.replicas and policy != AT_STARTUP
        return (Dependency(WORKER, "Ready"),) if waits else ()

    def validate(self, job: Job) -> Iterator[FieldError]:
        """Yield errors of the numbers of replicas; workers without a number are none."""
        yield from super().validate(job)
        yield from self.check_number(job, WORKER)

    def build_env(self, job: Job, replica: ReplicaId, topology: Topology) -> list[EnvVar]:
        """Return where the job's MPI finds its agent and its hosts; workers need no variables."""
        if replica.type != LAUNCHER:
            return []
        directory, slots = topology.directory(replica), str(slots_per_worker(job))
        agent, hosts = f"{directory}/{AGENT}", f"{directory}/{HOSTFILE}"
        variables: dict[str, list[EnvVar]] = {
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
        result = variables[_find_implementation(job)]
        if not self.launcher_computes(job):
            # NVIDIA's container runtime would give the launcher all GPUs of the node.
            result += [("NVIDIA_VISIBLE_DEVICES", ""), ("NVIDIA_DRIVER_CAPABILITIES", "")]
        root: list[EnvVar] = [
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ]
        return result + env_unless_declared(job, replica, self.container, root)

    def adapt_command(self, job: Job, type: ReplicaType, command: Sequence[str]) -> Sequence[str]:
        """Return the command; a worker waits instead of running the ssh server."""
        if type == WORKER and command and command[0].rpartition("/")[2] == "sshd":
            return WAIT_COMMAND
        return super().adapt_command(job, type, command)

    def launcher_computes(self, job: Job) -> bool:
        """Return ``runLauncherAsWorker``."""
        return bool(job.options.get("runLauncherAsWorker"))

    def render_hostfile(self, job: Job) -> str:
        """Return the hosts by their qualified names, in the implementation's format."""
        separator = " slots=" if _find_implementation(job) == OPEN_MPI else ":"
        end = f"{separator}{slots_per_worker(job)}\n"
        return "".join(self.qualified_name(job, host) + end for host in self.list_hosts(job))

    def render_discovery_script(self, job: Job, running: Sequence[ReplicaId]) -> str:
        """Return the script that lists the hosts that run, sorted and without slots."""
        names = sorted(
            self.qualified_name(job, host) for host in job.replica_ids(WORKER) if host in running
        )
        if self.launcher_computes(job):
            names.insert(0, self.qualified_name(job, ReplicaId(LAUNCHER, 0)))
        return "#!/bin/sh\n" + "".join(f"echo {name}\n" for name in names)

    def subdomain(self, job: Job) -> str:
        """Return the Service of the launcher and the workers."""
        return job.name

    def qualified_name(self, job: Job, replica: ReplicaId) -> str:
        """Return the name of a replica in the host file."""
        return f"{self.pod_name(job, replica)}.{self.subdomain(job)}.{job.namespace}.svc"


def _find_implementation(job: Job) -> str:
    return job.options.get("mpiImplementation") or OPEN_MPI


V2BETA1 = MpiV2beta1()
