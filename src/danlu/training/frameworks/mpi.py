"""MPIJob: a launcher whose ``mpirun`` starts processes in workers that wait.

The files and variables are those of the training operator 1.9 (``pkg/controller.v1/mpi``). Hosts
are always named after their pods (``J-worker-0``): MPI passes the name to its remote agent,
``kubexec.sh`` in the topology's directory, and does not have to resolve it. On a cluster the agent
is ``kubectl exec``; a driver that reaches workers in another way replaces that file. Kubeflow's
variables are followed by those that Open MPI 5 and PRRTE read instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import structs

from danlu.training.framework import (
    AddedImage,
    EnvVar,
    FieldError,
    Framework,
    GeneratedFile,
    Messages,
    PodTemplate,
    policy_rule,
)
from danlu.training.pod_template import (
    append_to,
    env_unless_declared,
    find_main_container,
    list_containers,
    pod_spec,
    replace_container,
    replace_spec,
)
from danlu.training.types import Job, ReplicaId, ReplicaType, Topology

LAUNCHER = ReplicaType("Launcher")
WORKER = ReplicaType("Worker")

# File names of the operator's ConfigMap.
AGENT = "kubexec.sh"
HOSTFILE = "hostfile"
DISCOVER = "discover_hosts.sh"
FILE_MODES = {AGENT: 0o555, DISCOVER: 0o555, HOSTFILE: 0o444}

# The default of Kubeflow's flag, and where that puts kubectl.
DELIVERY_IMAGE = AddedImage(
    "kubeflow/kubectl-delivery:latest",
    "--mpi-kubectl-delivery-image",
    "Image that provides kubectl to the launchers of MPIJobs.",
)
KUBECTL_DIRECTORY = "/opt/kube"
RBAC_GROUP = "rbac.authorization.k8s.io"
CONFIG_VOLUME = "mpi-job-config"
KUBECTL_VOLUME = "mpi-job-kubectl"
WAIT_COMMAND = ("sleep", "365d")


# Kubeflow's controller of MPIJobs does not look at exit codes.
MESSAGES = Messages(failed_by_exit_code=Messages().failed)
EVICTED = "{evicted}/{expected} workers are evicted"


class MpiFramework(Framework):
    """A launcher, and the workers in which it starts processes."""

    name = "mpi"
    kind = "MPIJob"
    plural = "mpijobs"
    modules = ("horovod", "mpi4py")
    starts_processes = True
    replicas_field = "mpiReplicaSpecs"
    spec_options = {
        "slotsPerWorker": {"type": "integer", "format": "int32", "minimum": 1},
        "mainContainer": {"type": "string"},
        "cleanPodPolicy": {},
    }
    replica_types = (LAUNCHER, WORKER)
    messages = {LAUNCHER: MESSAGES, WORKER: structs.replace(MESSAGES, evicted=EVICTED)}
    driver_types = (LAUNCHER,)
    required_types = (LAUNCHER,)
    singleton_types = (LAUNCHER,)
    idle_types = (LAUNCHER,)
    server_types = (WORKER,)
    default_replicas = {WORKER: 0}
    container = "mpi"
    any_container = True
    port_name = "mpi-port"
    port = 9999
    env_in_all_containers = False
    services = False
    uses_api_server = True  # the launcher starts the workers' programs through it
    files_directory = "/etc/mpi"
    added_images = (DELIVERY_IMAGE,)
    operator_rules = (
        policy_rule("", ["serviceaccounts"], ["create", "get"]),
        policy_rule(
            "rbac.authorization.k8s.io", ["rolebindings", "roles"], ["create", "get", "patch"]
        ),
        policy_rule("", ["pods/exec"], ["create"]),
        policy_rule("", ["configmaps"], ["create", "delete", "get", "patch"]),
    )
    # Open MPI's daemon begins by removing its job's session directory, and with it that of another
    # daemon which shares the temporary directory (orte/mca/ess/base/ess_base_std_orted.c).
    needs_own_tmpdir = True

    def pod_name(self, job: Job, replica: ReplicaId) -> str:
        """Return the name of a pod; the launcher's has no index (``newLauncher``)."""
        return f"{job.name}-launcher" if replica.type == LAUNCHER else f"{job.name}-{replica}"

    def build_env(self, job: Job, replica: ReplicaId, topology: Topology) -> list[EnvVar]:
        """Return where MPI finds its agent and its hosts; workers need no variables."""
        if replica.type != LAUNCHER:
            return []
        directory = topology.directory(replica)
        agent, hosts = f"{directory}/{AGENT}", f"{directory}/{HOSTFILE}"
        variables: list[EnvVar] = [
            ("OMPI_MCA_plm_rsh_agent", agent),
            ("OMPI_MCA_orte_default_hostfile", hosts),
        ]
        if not _has_gpu(job):
            # NVIDIA's container runtime would give the launcher all GPUs of the node.
            variables += [("NVIDIA_VISIBLE_DEVICES", ""), ("NVIDIA_DRIVER_CAPABILITIES", "")]
        optional = [
            ("I_MPI_HYDRA_BOOTSTRAP", "rsh"),
            ("I_MPI_HYDRA_BOOTSTRAP_EXEC", agent),
            ("PRTE_MCA_plm_ssh_agent", agent),
            ("PRTE_MCA_prte_default_hostfile", hosts),
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ]
        return variables + env_unless_declared(job, replica, self.container, optional)

    def validate(self, job: Job) -> Iterator[FieldError]:
        """Yield errors of ``slotsPerWorker`` and ``mainContainer``."""
        yield from super().validate(job)
        slots = job.options.get("slotsPerWorker")
        if slots is not None and (not isinstance(slots, int) or slots is True or slots < 1):
            yield FieldError("spec.slotsPerWorker", f"cannot be {slots!r}", "a number from 1")
        main = job.options.get("mainContainer")
        workers = job.replicas.get(WORKER)
        containers = list_containers(workers.template) if workers else ()
        names = [container.get("name", "") for container in containers]
        if main and names and main not in names:
            message = f"the workers have no container {main!r}"
            yield FieldError("spec.mainContainer", message, ", ".join(names))

    def files(
        self, job: Job, topology: Topology, running: Sequence[ReplicaId]
    ) -> Mapping[str, GeneratedFile]:
        """Return the host file, the remote agent, and Horovod's host discovery script."""
        return {
            HOSTFILE: GeneratedFile(self._render_hostfile(job)),
            AGENT: GeneratedFile(_agent_script(job), executable=True, agent=True),
            DISCOVER: GeneratedFile(self._render_discovery_script(job, running), executable=True),
        }

    def wrap_command(self, job: Job, type: ReplicaType, command: Sequence[str]) -> Sequence[str]:
        """Return ``mpirun`` with one process per slot for the launcher; workers wait."""
        if type == WORKER:
            return WAIT_COMMAND
        if not command:
            return ()
        hosts = job.replica_count(WORKER) + (1 if _has_gpu(job) else 0)
        return ("mpirun", "-np", str(_slots_per_worker(job) * max(hosts, 1)), *command)

    def count_processes(self, job: Job, type: ReplicaType) -> int:
        """Return the slots of a worker."""
        return _slots_per_worker(job) if type == WORKER else 1

    def mutate_pod(
        self, job: Job, replica: ReplicaId, topology: Topology, template: PodTemplate
    ) -> PodTemplate:
        """Mount the files; give the launcher its name, account and kubectl, and workers a wait."""
        directory = topology.directory(replica)
        if replica.type == LAUNCHER:
            template = self._deliver_kubectl(job, template, directory)
            return self._mount_files(template, job, directory, (AGENT, HOSTFILE, DISCOVER))
        main = find_main_container(template, self.container)
        if main and not main.get("command"):
            program, *args = WAIT_COMMAND
            waiting = {**main, "command": [program], "args": args}
            template = replace_container(template, waiting, main)
        # Open MPI looks for the agent on every rank.
        return self._mount_files(template, job, directory, (AGENT,))

    def _mount_files(
        self, template: PodTemplate, job: Job, directory: str, names: Sequence[str]
    ) -> PodTemplate:
        items = [{"key": name, "path": name, "mode": FILE_MODES[name]} for name in names]
        config_map = {"name": f"{job.name}-config", "items": items}
        volume = {"name": CONFIG_VOLUME, "configMap": config_map}
        return self._mount_volume(template, volume, directory)

    def _deliver_kubectl(self, job: Job, template: PodTemplate, directory: str) -> PodTemplate:
        volume = {"name": KUBECTL_VOLUME, "emptyDir": {}}
        template = self._mount_volume(template, volume, KUBECTL_DIRECTORY)
        spec = append_to(template["spec"], "initContainers", _delivery_container(job, directory))
        spec.setdefault("serviceAccountName", f"{job.name}-launcher")
        return replace_spec(template, spec)

    def _mount_volume(
        self, template: PodTemplate, volume: Mapping[str, Any], path: str
    ) -> PodTemplate:
        mount = {"name": volume["name"], "mountPath": path}
        main = find_main_container(template, self.container)
        template = replace_container(template, append_to(main, "volumeMounts", mount), main)
        return replace_spec(template, append_to(template["spec"], "volumes", volume))

    def extra_objects(self, job: Job, topology: Topology) -> list[dict[str, Any]]:
        """Return the RBAC objects that let the launcher exec in the workers, and nothing else.

        The account is the one its template names, else a new one (``newLauncherRole``).
        """
        name = f"{job.name}-launcher"
        template = job.replicas[LAUNCHER].template
        given = pod_spec(template).get("serviceAccountName")
        account = {"apiVersion": "v1", "kind": "ServiceAccount"}
        workers = [self.pod_name(job, worker) for worker in job.replica_ids(WORKER)]
        rules: list[dict[str, Any]] = [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
        ]
        if workers:
            execute = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}
            rules.append({**execute, "resourceNames": workers})
        role = {"apiVersion": f"{RBAC_GROUP}/v1", "kind": "Role", "rules": rules}
        subject = {"kind": "ServiceAccount", "name": given or name, "namespace": job.namespace}
        binding = {
            "apiVersion": f"{RBAC_GROUP}/v1",
            "kind": "RoleBinding",
            "subjects": [subject],
            "roleRef": {"apiGroup": RBAC_GROUP, "kind": "Role", "name": name},
        }
        metadata = {"name": name, "namespace": job.namespace, "labels": {"app": job.name}}
        objects: list[dict[str, Any]] = [role, binding] if given else [account, role, binding]
        return [{**manifest, "metadata": metadata} for manifest in objects]

    def _render_hostfile(self, job: Job) -> str:
        hosts = [self.pod_name(job, worker) for worker in job.replica_ids(WORKER)]
        if _has_gpu(job):
            hosts.insert(0, self.pod_name(job, ReplicaId(LAUNCHER, 0)))
        return "".join(f"{host} slots={_slots_per_worker(job)}\n" for host in hosts)

    def _render_discovery_script(self, job: Job, running: Sequence[ReplicaId]) -> str:
        """Return the script that lists the running workers by name, for Horovod's elastic mode."""
        slots = _slots_per_worker(job)
        text = "#!/bin/sh"
        if _has_gpu(job):
            text += f"\necho {self.pod_name(job, ReplicaId(LAUNCHER, 0))}:{slots}\n"
        names = sorted(self.pod_name(job, replica) for replica in running if replica.type == WORKER)
        return text + "".join(f"\necho {name}:{slots}" for name in names)


def _has_gpu(job: Job) -> bool:
    """Return whether the launcher asks for GPUs, and so computes like a worker."""
    spec = job.replicas.get(LAUNCHER)
    return any(
        "gpu" in resource
        for container in (list_containers(spec.template) if spec else ())
        for resource in (container.get("resources") or {}).get("limits") or {}
    )


def _slots_per_worker(job: Job) -> int:
    slots = job.options.get("slotsPerWorker")
    return 1 if slots is None else int(slots)


def _agent_script(job: Job) -> str:
    container = job.options.get("mainContainer")
    option = f" --container {container}" if container else ""
    return (
        "#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n"
        f'{KUBECTL_DIRECTORY}/kubectl exec ${{POD_NAME}}{option} -- /bin/sh -c "$*"'
    )


def _delivery_container(job: Job, directory: str) -> dict[str, Any]:
    size = {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "5Gi"}
    return {
        "name": "kubectl-delivery",
        "image": DELIVERY_IMAGE.image,
        "imagePullPolicy": "IfNotPresent",
        "env": [
            {"name": "TARGET_DIR", "value": KUBECTL_DIRECTORY},
            {"name": "NAMESPACE", "value": job.namespace},
        ],
        "volumeMounts": [
            {"name": KUBECTL_VOLUME, "mountPath": KUBECTL_DIRECTORY},
            {"name": CONFIG_VOLUME, "mountPath": directory},
        ],
        "resources": {"limits": size, "requests": dict(size)},
    }


FRAMEWORK = MpiFramework()
