"""MPIJob: a launcher whose ``mpirun`` starts its processes in workers that wait.

The files and variables are those of the training operator 1.9 (``pkg/controller.v1/mpi``). Hosts
are called by the names of their pods (``J-worker-0``) everywhere: MPI hands a name to the remote
agent, ``kubexec.sh`` in the directory of the topology, and need not resolve it. On a cluster the
agent is ``kubectl exec``; a driver that reaches workers otherwise puts its own text in the place
of that file. After Kubeflow's variables come those that Open MPI 5 and PRRTE read instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from danlu.training.framework import (
    File,
    Finding,
    Framework,
    Tally,
    Template,
    Variable,
    Verdict,
)
from danlu.training.frameworks.pods import (
    containers,
    extended,
    main_container,
    unless_given,
    with_containers,
    with_metadata,
    with_spec,
)
from danlu.training.frameworks.replicas import count, exactly_one, leader, members, verdict
from danlu.training.types import Job, ReplicaId, ReplicaType, Topology

__all__ = ["FRAMEWORK"]

LAUNCHER = ReplicaType("Launcher")
WORKER = ReplicaType("Worker")
TYPES = (LAUNCHER, WORKER)
FIELD = "mpiReplicaSpecs"
CONTAINER = "mpi"

AGENT = "kubexec.sh"
HOSTS = "hostfile"
DISCOVER = "discover_hosts.sh"

# The default of the operator's flag --mpi-kubectl-delivery-image, and where that puts kubectl.
DELIVERY_IMAGE = "kubeflow/kubectl-delivery:latest"
KUBECTL = "/opt/kube"
CONFIG_VOLUME = "mpi-job-config"
KUBECTL_VOLUME = "mpi-job-kubectl"
WAIT = ("sleep", "365d")


def _environment(job: Job, replica: ReplicaId, topology: Topology) -> list[Variable]:
    if replica.type != LAUNCHER:
        return []
    directory = topology.directory(replica)
    agent, hosts = f"{directory}/{AGENT}", f"{directory}/{HOSTS}"
    variables: list[Variable] = [
        ("OMPI_MCA_plm_rsh_agent", agent),
        ("OMPI_MCA_orte_default_hostfile", hosts),
    ]
    if not _has_gpu(job):
        # A launcher that asked for no GPU must not take one by the way of its container runtime.
        variables += [("NVIDIA_VISIBLE_DEVICES", ""), ("NVIDIA_DRIVER_CAPABILITIES", "")]
    yielding = [
        ("I_MPI_HYDRA_BOOTSTRAP", "rsh"),
        ("I_MPI_HYDRA_BOOTSTRAP_EXEC", agent),
        ("PRTE_MCA_plm_ssh_agent", agent),
        ("PRTE_MCA_prte_default_hostfile", hosts),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ]
    return variables + unless_given(job, replica, CONTAINER, yielding)


def _has_gpu(job: Job) -> bool:
    spec = job.replicas.get(LAUNCHER)
    limits = [
        (one.get("resources") or {}).get("limits") or {}
        for one in (containers(spec.template) if spec else ())
    ]
    return any("gpu" in name for some in limits for name in some)


def _slots(job: Job) -> int:
    """Processes a worker, 1 unless ``slotsPerWorker`` says otherwise."""
    slots = job.options.get("slotsPerWorker")
    return 1 if slots is None else int(slots)


def _pod(job: Job, replica: ReplicaId) -> str:
    """The launcher's pod has no number (``mpijob_controller.go``, newLauncher)."""
    return f"{job.name}-launcher" if replica.type == LAUNCHER else f"{job.name}-{replica}"


def _files(job: Job, topology: Topology, running: Sequence[ReplicaId]) -> Mapping[str, File]:
    return {
        HOSTS: File(_host_file(job)),
        AGENT: File(_agent(job), executable=True),
        DISCOVER: File(_discover(job, running), executable=True),
    }


def _host_file(job: Job) -> str:
    hosts = [_pod(job, one) for one in members(job, WORKER)]
    if _has_gpu(job):
        hosts.insert(0, _pod(job, ReplicaId(LAUNCHER, 0)))
    return "".join(f"{host} slots={_slots(job)}\n" for host in hosts)


def _agent(job: Job) -> str:
    container = job.options.get("mainContainer")
    chosen = f" --container {container}" if container else ""
    return (
        "#!/bin/sh\nset -x\nPOD_NAME=$1\nshift\n"
        f'{KUBECTL}/kubectl exec ${{POD_NAME}}{chosen} -- /bin/sh -c "$*"'
    )


def _discover(job: Job, running: Sequence[ReplicaId]) -> str:
    """The workers that run now, in the order of their names, for Horovod's elastic mode."""
    text = "#!/bin/sh"
    if _has_gpu(job):
        text += f"\necho {_pod(job, ReplicaId(LAUNCHER, 0))}:{_slots(job)}\n"
    names = sorted(_pod(job, one) for one in running if one.type == WORKER)
    return text + "".join(f"\necho {name}:{_slots(job)}" for name in names)


def _launch(job: Job, type: ReplicaType, command: Sequence[str]) -> Sequence[str]:
    if type == WORKER:
        return WAIT
    if not command:
        return ()
    hosts = count(job, WORKER) + (1 if _has_gpu(job) else 0)
    return ("mpirun", "-np", str(_slots(job) * max(hosts, 1)), *command)


def _outcome(job: Job, tallies: Mapping[ReplicaType, Tally]) -> Verdict | None:
    return verdict(TYPES, tallies, driver=LAUNCHER)


def _check(job: Job) -> Iterator[Finding]:
    yield from exactly_one(job, LAUNCHER, field=FIELD)
    slots = job.options.get("slotsPerWorker")
    if slots is not None and (not isinstance(slots, int) or slots is True or slots < 1):
        yield Finding("spec.slotsPerWorker", f"cannot be {slots!r}", "a number from 1")
    main = job.options.get("mainContainer")
    workers = job.replicas.get(WORKER)
    names = [one.get("name", "") for one in containers(workers.template)] if workers else []
    if main and names and main not in names:
        known = ", ".join(names)
        yield Finding("spec.mainContainer", f"no worker has a container {main!r}", known)


def _leader(job: Job) -> ReplicaId:
    return leader(job, LAUNCHER)


def _decorate(job: Job, replica: ReplicaId, topology: Topology, template: Template) -> Template:
    """Mount the files; give the launcher its name, its rights and ``kubectl``, workers a wait."""
    directory = topology.directory(replica)
    if replica.type == LAUNCHER:
        named = with_metadata(template, {"name": _pod(job, replica)})
        return _mount(_deliver(job, named, directory), job, directory, (AGENT, HOSTS, DISCOVER))
    main = main_container(template, CONTAINER)
    if main and not main.get("command"):
        waiting = {**main, "command": [WAIT[0]], "args": list(WAIT[1:])}
        template = with_containers(template, waiting, main)
    # Open MPI looks for the agent in every rank.
    return _mount(template, job, directory, (AGENT,))


def _mount(template: Template, job: Job, directory: str, names: Sequence[str]) -> Template:
    modes = {AGENT: 0o555, DISCOVER: 0o555, HOSTS: 0o444}
    items = [{"key": name, "path": name, "mode": modes[name]} for name in names]
    volume = {
        "name": CONFIG_VOLUME,
        "configMap": {"name": f"{job.name}-config", "items": items},
    }
    return _with_volume(template, volume, directory)


def _deliver(job: Job, template: Template, directory: str) -> Template:
    template = _with_volume(template, {"name": KUBECTL_VOLUME, "emptyDir": {}}, KUBECTL)
    spec = extended(template["spec"], "initContainers", _delivery(job, directory))
    spec.setdefault("serviceAccountName", f"{job.name}-launcher")
    return with_spec(template, spec)


def _objects(job: Job, topology: Topology) -> list[dict[str, Any]]:
    """The launcher's right to run its agent in the workers, and nothing else.

    Its account is the one that its template names, else one of its own (``newLauncherRole``).
    """
    name = f"{job.name}-launcher"
    template = job.replicas[LAUNCHER].template
    given = (template.get("spec") or {}).get("serviceAccountName")
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    group = "rbac.authorization.k8s.io"
    workers = [_pod(job, one) for one in members(job, WORKER)]
    rules: list[dict[str, Any]] = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    ]
    if workers:
        execute = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}
        rules.append({**execute, "resourceNames": workers})
    role = {"apiVersion": f"{group}/v1", "kind": "Role", "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "subjects": [{"kind": "ServiceAccount", "name": given or name, "namespace": job.namespace}],
        "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
    }
    metadata = {"name": name, "namespace": job.namespace, "labels": {"app": job.name}}
    wanted: list[dict[str, Any]] = [role, binding] if given else [account, role, binding]
    return [{**one, "metadata": metadata} for one in wanted]


def _with_volume(template: Template, volume: Mapping[str, Any], path: str) -> Template:
    mount = {"name": volume["name"], "mountPath": path}
    main = main_container(template, CONTAINER)
    mounted = with_containers(template, extended(main, "volumeMounts", mount), main)
    return with_spec(mounted, extended(mounted["spec"], "volumes", volume))


def _delivery(job: Job, directory: str) -> dict[str, Any]:
    size = {"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "5Gi"}
    return {
        "name": "kubectl-delivery",
        "image": DELIVERY_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "env": [
            {"name": "TARGET_DIR", "value": KUBECTL},
            {"name": "NAMESPACE", "value": job.namespace},
        ],
        "volumeMounts": [
            {"name": KUBECTL_VOLUME, "mountPath": KUBECTL},
            {"name": CONFIG_VOLUME, "mountPath": directory},
        ],
        "resources": {"limits": size, "requests": dict(size)},
    }


FRAMEWORK = Framework(
    name="mpi",
    kind="MPIJob",
    plural="mpijobs",
    replicas_field=FIELD,
    types=TYPES,
    required=(LAUNCHER,),
    single=(LAUNCHER,),
    container=CONTAINER,
    port_name="mpi-port",
    port=9999,
    options=("slotsPerWorker", "mainContainer", "cleanPodPolicy"),
    defaults={WORKER: 0},
    everywhere=False,
    any_container=True,
    environment=_environment,
    outcome=_outcome,
    leader=_leader,
    check=_check,
    files=_files,
    launch=_launch,
    decorate=_decorate,
    services=False,
    objects=_objects,
)
