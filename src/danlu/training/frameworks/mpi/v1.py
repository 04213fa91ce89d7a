"""MPIJob ``kubeflow.org/v1``: on a cluster, the launcher's agent is ``kubectl exec``.

The files and variables are those of the training operator 1.9 (``pkg/controller.v1/mpi``).
Kubeflow's variables are followed by those that Open MPI 5 and PRRTE read instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import structs

from danlu.training.framework import (
    AddedImage,
    EnvVar,
    FieldError,
    Messages,
    PodTemplate,
    policy_rule,
)
from danlu.training.frameworks.mpi.base import (
    AGENT,
    CONFIG_VOLUME,
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
from danlu.training.frameworks.mpi.v2beta1 import V2BETA1
from danlu.training.pod_template import (
    append_to,
    env_unless_declared,
    find_main_container,
    list_containers,
    pod_spec,
    replace_container,
    replace_spec,
)
from danlu.training.types import Job, ReplicaId, Topology

# The default of Kubeflow's flag, and where that puts kubectl.
DELIVERY_IMAGE = AddedImage(
    "kubeflow/kubectl-delivery:latest",
    "--mpi-kubectl-delivery-image",
    "Image that provides kubectl to the launchers of MPIJobs.",
)
KUBECTL_DIRECTORY = "/opt/kube"
RBAC_GROUP = "rbac.authorization.k8s.io"
KUBECTL_VOLUME = "mpi-job-kubectl"


# Kubeflow's controller of MPIJobs does not look at exit codes.
MESSAGES = Messages(failed_by_exit_code=Messages().failed)


class MpiFramework(MpiBase):
    """The MPIJob of the training operator."""

    other_versions = (V2BETA1,)
    spec_options = {
        "slotsPerWorker": {"type": "integer", "format": "int32", "minimum": 1},
        "mainContainer": {"type": "string"},
        "cleanPodPolicy": {},
    }
    messages = {LAUNCHER: MESSAGES, WORKER: structs.replace(MESSAGES, evicted=EVICTED)}
    container = "mpi"
    uses_api_server = True  # the launcher starts the workers' programs through it
    added_images = (DELIVERY_IMAGE,)
    operator_rules = (
        policy_rule("", ["serviceaccounts"], ["create", "get"]),
        policy_rule(
            "rbac.authorization.k8s.io", ["rolebindings", "roles"], ["create", "get", "patch"]
        ),
        policy_rule("", ["pods/exec"], ["create"]),
        policy_rule("", ["configmaps"], ["create", "delete", "get", "patch"]),
    )

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
        if not self.launcher_computes(job):
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

    def mutate_pod(
        self, job: Job, replica: ReplicaId, topology: Topology, template: PodTemplate
    ) -> PodTemplate:
        """Mount the files; give the launcher its name, account and kubectl, and workers a wait."""
        directory = topology.directory(replica)
        if replica.type == LAUNCHER:
            template = self._deliver_kubectl(job, template, directory)
            return self.mount_files(template, job, directory, (AGENT, HOSTFILE, DISCOVER))
        main = find_main_container(template, self.container)
        if main and not main.get("command"):
            program, *args = WAIT_COMMAND
            waiting = {**main, "command": [program], "args": args}
            template = replace_container(template, waiting, main)
        # Open MPI looks for the agent on every rank.
        return self.mount_files(template, job, directory, (AGENT,))

    def _deliver_kubectl(self, job: Job, template: PodTemplate, directory: str) -> PodTemplate:
        volume = {"name": KUBECTL_VOLUME, "emptyDir": {}}
        template = mount_volume(template, self.container, volume, KUBECTL_DIRECTORY)
        spec = append_to(template["spec"], "initContainers", _delivery_container(job, directory))
        spec.setdefault("serviceAccountName", f"{job.name}-launcher")
        return replace_spec(template, spec)

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

    def launcher_computes(self, job: Job) -> bool:
        """Return whether the launcher asks for GPUs."""
        spec = job.replicas.get(LAUNCHER)
        return any(
            "gpu" in resource
            for container in (list_containers(spec.template) if spec else ())
            for resource in (container.get("resources") or {}).get("limits") or {}
        )

    def render_hostfile(self, job: Job, topology: Topology) -> str:
        """Return the hosts by the names of their pods."""
        slots, hosts = slots_per_worker(job), self.list_hosts(job)
        return "".join(f"{self.pod_name(job, host)} slots={slots}\n" for host in hosts)

    def render_agent(self, job: Job) -> str:
        """Return the script that runs ``kubectl exec``."""
        container = job.options.get("mainContainer")
        option = f" --container {container}" if container else ""
        return (
            "#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n"
            f'{KUBECTL_DIRECTORY}/kubectl exec ${{POD_NAME}}{option} -- /bin/sh -c "$*"'
        )

    def render_discovery_script(
        self, job: Job, topology: Topology, running: Sequence[ReplicaId]
    ) -> str:
        """Return the script that lists the running workers by name, with their slots."""
        slots = slots_per_worker(job)
        text = "#!/bin/sh"
        if self.launcher_computes(job):
            text += f"\necho {self.pod_name(job, ReplicaId(LAUNCHER, 0))}:{slots}\n"
        names = sorted(self.pod_name(job, replica) for replica in running if replica.type == WORKER)
        return text + "".join(f"\necho {name}:{slots}" for name in names)


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
