"""Read a TrainJob with its runtime as a job.

The steps are those of Kubeflow Trainer 2.3: the runtime's template, merged with
``spec.runtimePatches``, then the fields of ``spec.trainer`` and ``spec.initializer``
(``pkg/runtime/core/trainingruntime.go``, ``plugins/jobset/builder.go``). What its webhooks refuse
is refused here, in their words where users search for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from danlu.training.document import invalid_job_error
from danlu.training.framework import FieldError
from danlu.training.frameworks.train_job import (
    DATASET_INITIALIZER,
    FRAMEWORK,
    INITIALIZERS,
    LAUNCHER,
    MODEL_INITIALIZER,
    MPI,
    NODE,
    POLICIES,
    POLICIES_FIELD,
    UNSUPPORTED_POLICIES,
    MLPolicy,
    TrainJobFramework,
    find_policy,
)
from danlu.training.manifest import drop_empty, drop_nulls
from danlu.training.pod_template import change_templates
from danlu.training.train_job.mpi import choose_framework
from danlu.training.train_job.patches import merge_lists, merge_patch
from danlu.training.train_job.runtimes import (
    ANCESTOR_LABEL,
    RUNTIME_NAMES,
    add_initializers,
    bundled_runtime,
)
from danlu.training.train_job.schema import (
    MANAGERS,
    NO_DATA_CACHE,
    RUNTIME_KINDS,
    check_runtime,
    check_train_job,
    replicated_jobs,
)
from danlu.training.train_job.volume_claims import add_claim_volumes, check_volume_claims
from danlu.training.types import (
    MANAGER,
    CleanPodPolicy,
    Dependency,
    Job,
    JobRestartPolicy,
    ReplicaSpec,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)
from danlu.training.validation import check_job
from danlu.util.quantity import parse_quantity
from danlu.util.suggest import did_you_mean

#: A Job of Kubernetes restarts its pods as often if it does not say otherwise.
_BACKOFF_LIMIT = 6

_TORCHTUNE = ["tune", "run"]
#: The volume of the initializers, and the variable with the address of their data.
_INITIALIZER_VOLUME, _STORAGE_URI = "initializer", "STORAGE_URI"
#: The variable that only the initializer of the data cache has (``pkg/initializers/dataset``).
_CACHE_IMAGE = "CACHE_IMAGE"
_INITIALIZER_FIELDS = {"dataset": DATASET_INITIALIZER, "model": MODEL_INITIALIZER}


def read_train_job(document: Mapping[str, Any], runtimes: Sequence[Mapping[str, Any]]) -> Job:
    """Return the job that a TrainJob describes.

    ``runtimes`` are those that a file provides; danlu has those of Kubeflow Trainer. Raises
    :class:`~danlu.training.document.ManifestError` with all errors, and with their lines if the
    documents come from :func:`~danlu.training.document.read_manifest_file`.
    """
    _raise_errors(document, check_train_job("", document))
    runtime = _find_runtime(document, runtimes)
    validate_runtime(runtime)
    # Kubernetes drops nulls; a strategic merge would remove what they name.
    spec, runtime_spec = drop_nulls(document["spec"]), drop_nulls(runtime["spec"])
    _raise_errors(document, _check_job_rules(spec, runtime_spec))
    template = _merge_patches(spec, runtime_spec)
    _raise_errors(runtime, check_volume_claims(template, document["metadata"].get("name") or ""))
    framework = find_runtime_framework(runtime_spec)
    return check_job(_build_job({**document, "spec": spec}, runtime_spec, template), framework)


def outline_train_job(
    document: Mapping[str, Any], numbers: Mapping[ReplicaType, int] = MappingProxyType({})
) -> Job:
    """Return what a TrainJob says without its runtime, of which it may be invalid, too.

    ``numbers`` are those of its replicas; by default it has the nodes that it sets, or one.
    """
    metadata, spec = document["metadata"], document["spec"]
    manager, trainer = str(spec.get("managedBy") or ""), spec.get("trainer")
    nodes = trainer.get("numNodes") if isinstance(trainer, Mapping) else None
    numbers = numbers or {NODE: nodes if isinstance(nodes, int) else 1}
    deadline = spec.get("activeDeadlineSeconds")
    return Job(
        kind=FRAMEWORK.kind,
        api_version=FRAMEWORK.api_version,
        name=metadata.get("name") or "",
        namespace=metadata.get("namespace") or "default",
        uid=metadata.get("uid") or "",
        labels=dict(metadata.get("labels") or {}),
        annotations=dict(metadata.get("annotations") or {}),
        replicas={
            type: ReplicaSpec(number, {}, RestartPolicy.ON_FAILURE)
            for type, number in numbers.items()
        },
        run_policy=RunPolicy(
            clean_pod_policy=CleanPodPolicy.RUNNING,
            active_deadline_seconds=deadline if isinstance(deadline, int) else None,
            suspend=bool(spec.get("suspend")),
            managed_by=MANAGER if manager == MANAGERS[0] else manager,
        ),
        options={"policy": MPI if LAUNCHER in numbers else "", "hasTrainer": False},
    )


def validate_runtime(runtime: Mapping[str, Any]) -> None:
    """Raise :class:`~danlu.training.document.ManifestError` for what danlu does not run."""
    _raise_errors(runtime, check_runtime("", runtime))
    _raise_errors(runtime, _check_runtime_rules(runtime["spec"]))


def find_runtime_framework(spec: Mapping[str, Any]) -> TrainJobFramework:
    """Return what drives the jobs of a runtime with this ``spec``."""
    return choose_framework(_name_policy(spec))


def _raise_errors(document: Mapping[str, Any], errors: Iterable[FieldError]) -> None:
    found = sorted(set(errors))
    if found:
        raise invalid_job_error(document, found, str(document.get("kind") or "TrainJob"))


def _find_runtime(
    document: Mapping[str, Any], runtimes: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Return the runtime that ``spec.runtimeRef`` names: of the file, else one of danlu's."""
    reference = document["spec"]["runtimeRef"]
    kind, name = reference.get("kind") or RUNTIME_KINDS[0], reference["name"]
    given = {(found["kind"], found["metadata"].get("name")): found for found in runtimes}
    bundled = bundled_runtime(name) if kind == RUNTIME_KINDS[0] else None
    runtime = given.get((kind, name), bundled)
    if runtime is not None:
        wanted = document["spec"].get("initializer") or {}
        steps = [field for field in _INITIALIZER_FIELDS if wanted.get(field) is not None]
        return add_initializers(runtime, steps) if runtime is bundled else runtime
    names = [*(str(found) for known, found in given if known == kind)]
    if kind == RUNTIME_KINDS[0]:
        names += RUNTIME_NAMES
    otherwise = (
        f"runtimes here: {', '.join(names)}; add its file with a further -f" if names else ""
    )
    hint = did_you_mean(name, names, otherwise=otherwise or f"add the {kind}'s file with -f")
    error = FieldError("spec.runtimeRef.name", f"{kind} '{name}' not found", hint)
    raise invalid_job_error(document, [error], "TrainJob")


# -- rules ----------------------------------------------------------------------------------------


def _check_runtime_rules(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield what a runtime of the right shape has wrong, or danlu does not do."""
    policies = _find_policies(spec)
    if len(policies) > 1:
        message = f"has several policies: {', '.join(policies)}"
        yield FieldError("spec.mlPolicy", message, "a runtime is for one framework")
    for policy in policies:
        if policy not in POLICIES:
            hint = f"policies that danlu runs: {', '.join(POLICIES)}, or none"
            yield FieldError(f"spec.mlPolicy.{policy}", "is not supported", hint)
    root = "spec.template.spec"
    names = [job["name"] for job in replicated_jobs(spec)]
    types = find_runtime_framework(spec).replica_types
    for index, job in enumerate(replicated_jobs(spec)):
        path, name = f"{root}.replicatedJobs[{index}]", job["name"]
        if name not in types:
            hint = f"replicated jobs that danlu runs: {', '.join(types)}"
            yield FieldError(f"{path}.name", f"cannot be '{name}'", hint)
        if names.count(name) > 1:
            yield FieldError(f"{path}.name", f"duplicate replicated job {name}")
        yield from _check_dependencies(job, names[:index], path)
        yield from _check_ancestor(job, path)
        yield from _check_data_cache(job, path)
        limit = job["template"]["spec"].get("backoffLimit")
        limit = _BACKOFF_LIMIT if limit is None else limit
        if limit and _max_restarts(spec["template"]["spec"]):
            message = f"must be 0 with a failurePolicy; it is {limit}"
            hint = "danlu restarts either single replicas or the whole job"
            yield FieldError(f"{path}.template.spec.backoffLimit", message, hint)
    yield from _check_injection(spec)
    targets = (spec["template"]["spec"].get("successPolicy") or {}).get("targetReplicatedJobs")
    for target in targets or ():
        if target not in names:
            path = f"{root}.successPolicy.targetReplicatedJobs"
            yield FieldError(path, f"replicated job '{target}' not found")


def _injection_targets(runtime: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return _list_in(runtime, f"mlPolicy.{_name_policy(runtime)}.envInjection.targets")


def _check_injection(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    """Check that the containers of ``envInjection`` exist, as the torch plug-in does."""
    known = {job["name"]: _container_names(job) for job in replicated_jobs(spec)}
    root = f"spec.mlPolicy.{_name_policy(spec)}"
    targets = [target["jobName"] for target in _injection_targets(spec)]
    for index, target in enumerate(_injection_targets(spec)):
        path, name = f"{root}.envInjection.targets[{index}]", target["jobName"]
        if name in targets[:index]:
            yield FieldError(f"{path}.jobName", f"duplicate target {name}")
        for container in target["containerNames"]:
            if container not in known.get(name, ()):
                message = f"container '{container}' not found in replicated job '{name}'"
                yield FieldError(path, message)


def _check_dependencies(
    job: Mapping[str, Any], earlier: Sequence[str], path: str
) -> Iterator[FieldError]:
    for number, dependency in enumerate(job.get("dependsOn") or ()):
        if dependency["name"] not in earlier:
            message = f"replicated job '{dependency['name']}' must be listed before"
            yield FieldError(f"{path}.dependsOn[{number}].name", message)


def _max_restarts(job_set: Mapping[str, Any]) -> int:
    return int((job_set.get("failurePolicy") or {}).get("maxRestarts") or 0)


def _check_ancestor(job: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Check that the containers of a step have the names by which it is configured."""
    step = _find_step(job)
    if step not in ("trainer", *INITIALIZERS):
        return
    expected = FRAMEWORK.container if step == "trainer" else step
    containers = job["template"]["spec"]["template"]["spec"]["containers"]
    if all(container["name"] != expected for container in containers):
        message = f"must have a container called '{expected}', because of its label {step}"
        yield FieldError(f"{path}.template.spec.template.spec.containers", message)


def _check_data_cache(job: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Refuse the data cache, whose initializer creates its nodes through a cluster's API."""
    containers = job["template"]["spec"]["template"]["spec"]["containers"]
    for number, container in enumerate(containers):
        for index, variable in enumerate(container.get("env") or ()):
            if variable["name"] == _CACHE_IMAGE:
                place = f"{path}.template.spec.template.spec.containers[{number}].env[{index}]"
                yield FieldError(place, NO_DATA_CACHE, "use a runtime without it")


def _check_job_rules(spec: Mapping[str, Any], runtime: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield what a TrainJob's own fields, or they and its runtime, have wrong."""
    trainer = spec.get("trainer") or {}
    policy = find_policy(_name_policy(runtime))
    for index, variable in enumerate(trainer.get("env") or ()):
        if variable["name"] in policy.reserved:
            message = f"must not have reserved envs: {variable['name']} is set by the runtime"
            yield FieldError(f"spec.trainer.env[{index}].name", message, "leave it out")
    if list(trainer.get("command") or ()) == _TORCHTUNE:
        hint = "write the whole command, with its recipe and options"
        yield FieldError("spec.trainer.command", "torchtune's recipes are not chosen here", hint)
    yield from _check_initializers(spec.get("initializer") or {}, runtime)
    yield from _check_patches(spec.get("runtimePatches") or (), runtime)


def _check_initializers(
    initializer: Mapping[str, Any], runtime: Mapping[str, Any]
) -> Iterator[FieldError]:
    jobs = {job["name"]: job for job in replicated_jobs(runtime)}
    for field, step in _INITIALIZER_FIELDS.items():
        if initializer.get(field) is None:
            continue
        path = f"spec.initializer.{field}"
        if step not in jobs:
            yield FieldError(path, f"the runtime must have a replicated job {step}")
            continue
        containers = jobs[step]["template"]["spec"]["template"]["spec"]["containers"]
        mounts = [
            mount["name"]
            for container in containers
            if container["name"] == step
            for mount in container.get("volumeMounts") or ()
        ]
        if _INITIALIZER_VOLUME not in mounts:
            message = f"must have volumeMount with name - {_INITIALIZER_VOLUME} in container {step}"
            hint = "the runtime's node has to mount the same volume, or the data does not arrive"
            yield FieldError(path, message, hint)


def _check_patches(
    patches: Sequence[Mapping[str, Any]], runtime: Mapping[str, Any]
) -> Iterator[FieldError]:
    known = {job["name"]: _container_names(job) for job in replicated_jobs(runtime)}
    managers = [patch["manager"] for patch in patches]
    for number, patch in enumerate(patches):
        root = f"spec.runtimePatches[{number}]"
        if managers.count(patch["manager"]) > 1:
            yield FieldError(f"{root}.manager", f"duplicate manager {patch['manager']}")
        for index, job in enumerate(
            _list_in(patch, "trainingRuntimeSpec.template.spec.replicatedJobs")
        ):
            path = f"{root}.trainingRuntimeSpec.template.spec.replicatedJobs[{index}]"
            if job["name"] not in known:
                message = "must not have replicated job that doesn't exist in the runtime"
                yield FieldError(f"{path}.name", message, f"it has {', '.join(known)}")
                continue
            for field in ("initContainers", "containers"):
                for container in _list_in(job, f"template.spec.template.spec.{field}"):
                    if container["name"] not in known[job["name"]]:
                        message = (
                            f"must not have a container '{container['name']}': the runtime has none"
                        )
                        yield FieldError(path, message)
                    elif container.get("env") and container["name"] in (NODE, *INITIALIZERS):
                        message = f"must not have envs for the {container['name']} container"
                        yield FieldError(path, message, "write them in spec.trainer or initializer")


def _list_in(value: Mapping[str, Any], path: str) -> Sequence[Mapping[str, Any]]:
    found: Any = value
    for name in path.split("."):
        found = found.get(name) or {}
    return found or ()


def _container_names(job: Mapping[str, Any]) -> frozenset[str]:
    pod = job["template"]["spec"]["template"]["spec"]
    fields = ("initContainers", "containers")
    return frozenset(container["name"] for field in fields for container in pod.get(field) or ())


def _find_step(job: Mapping[str, Any]) -> str:
    """Return the step of a TrainJob that a replicated job is, by its label."""
    labels = (job["template"].get("metadata") or {}).get("labels") or {}
    return str(labels.get(ANCESTOR_LABEL) or "")


def _find_policies(runtime: Mapping[str, Any]) -> list[str]:
    policy = runtime.get("mlPolicy") or {}
    return [name for name in (*POLICIES, *UNSUPPORTED_POLICIES) if policy.get(name) is not None]


def _name_policy(runtime: Mapping[str, Any]) -> str:
    return next(iter(_find_policies(runtime)), "")


# -- the job --------------------------------------------------------------------------------------


def _merge_patches(spec: Mapping[str, Any], runtime: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the runtime's template with the patches of a TrainJob."""
    template: Mapping[str, Any] = runtime["template"]["spec"]
    for patch in spec.get("runtimePatches") or ():
        change = ((patch.get("trainingRuntimeSpec") or {}).get("template") or {}).get("spec")
        template = merge_patch(template, change or {})
    return template


def _build_job(
    document: Mapping[str, Any], runtime: Mapping[str, Any], template: Mapping[str, Any]
) -> Job:
    spec, name = document["spec"], document["metadata"].get("name") or ""
    jobs = template["replicatedJobs"]
    claims = template.get(POLICIES_FIELD) or ()
    policy, restarts = _name_policy(runtime), _max_restarts(template)
    mpi = _find_mpi_policy(runtime)
    nodes = next((job for job in jobs if _find_step(job) == "trainer"), None)
    replicas = {
        type: _build_replicas(job, spec, runtime)
        for type in choose_framework(policy).replica_types
        for job in jobs
        if job["name"] == type
    }
    trainer = spec.get("trainer") or {}
    limit = nodes["template"]["spec"].get("backoffLimit") if nodes else None
    outline = outline_train_job(document)
    job = msgspec.structs.replace(
        outline,
        replicas=replicas,
        run_policy=msgspec.structs.replace(
            outline.run_policy,
            ttl_seconds_after_finished=template.get("ttlSecondsAfterFinished"),
            backoff_limit=_BACKOFF_LIMIT if limit is None else limit,
        ),
        job_restart_policy=JobRestartPolicy(restarts) if restarts else None,
        options={
            "policy": policy,
            "processes": count_processes(
                find_policy(policy),
                trainer.get("numProcPerNode") or _find_runtime_processes(mpi),
                _node_resources(trainer, jobs),
            ),
            # Without a step called trainer, Trainer's plug-ins find no container to set variables.
            "hasTrainer": spec.get("trainer") is not None and nodes is not None,
            "successPolicy": template.get("successPolicy") or {},
            **drop_empty(
                {
                    "podGroupPolicy": runtime.get("podGroupPolicy"),
                    "envInjection": {
                        target["jobName"]: [*target["containerNames"]]
                        for target in _injection_targets(runtime)
                    },
                    "runLauncherAsNode": mpi.get("runLauncherAsNode") or None,
                    "sshAuthMountPath": mpi.get("sshAuthMountPath"),
                    POLICIES_FIELD: [*claims],
                    **_read_rest(template),
                }
            ),
        },
    )
    return change_templates(job, lambda template: add_claim_volumes(template, claims, name))


def _read_rest(job_set: Mapping[str, Any]) -> dict[str, Any]:
    """Return what else a JobSet says: its names, and what has no effect on this machine."""
    network = job_set.get("network") or {}
    metadata = {
        job["name"]: _drop_ancestor(job["template"].get("metadata") or {})
        for job in job_set["replicatedJobs"]
    }
    return {
        "subdomain": network.get("subdomain"),
        "network": {name: value for name, value in network.items() if value is False},
        "restartStrategy": (job_set.get("failurePolicy") or {}).get("restartStrategy"),
        "jobMetadata": drop_empty(metadata),
    }


def _drop_ancestor(metadata: Mapping[str, Any]) -> dict[str, Any]:
    labels = {
        name: value
        for name, value in (metadata.get("labels") or {}).items()
        if name != ANCESTOR_LABEL
    }
    return drop_empty({**metadata, "labels": labels})


def _build_replicas(
    job: Mapping[str, Any], spec: Mapping[str, Any], runtime: Mapping[str, Any]
) -> ReplicaSpec:
    """Return the replicas of a replicated job, with what the TrainJob sets of its step."""
    inner = job["template"]["spec"]
    template, step = inner["template"], _find_step(job)
    number, trainer = inner.get("parallelism"), spec.get("trainer") or {}
    has_launcher = _name_policy(runtime) == MPI
    if step == "trainer" and runtime.get("mlPolicy") is not None:
        number = runtime["mlPolicy"].get("numNodes")
    counted = job["name"] == NODE if has_launcher else step == "trainer"
    if counted and trainer.get("numNodes") is not None:
        number = trainer["numNodes"]
        if _find_mpi_policy(runtime).get("runLauncherAsNode"):
            number = max(number - 1, 1)
    if step == "trainer":
        template = _set_container_fields(template, FRAMEWORK.container, _trainer_fields(trainer))
    elif has_launcher and job["name"] in (NODE, LAUNCHER):
        computes = job["name"] == NODE and _find_mpi_policy(runtime).get("runLauncherAsNode")
        # The image always, since 2.4; the others as in jobset/builder.go.
        names = ("image", "env", "resources") if computes else ("image",)
        fields = {name: value for name, value in _trainer_fields(trainer).items() if name in names}
        template = _set_container_fields(template, FRAMEWORK.container, fields)
    elif step in INITIALIZERS:
        (field,) = (field for field, type in _INITIALIZER_FIELDS.items() if type == step)
        given = (spec.get("initializer") or {}).get(field) or {}
        template = _set_container_fields(template, step, _initializer_fields(given))
    return ReplicaSpec(
        replicas=1 if number is None else number,
        template=template,
        # A Job starts further pods instead of restarting them in place if they say Never.
        restart_policy=RestartPolicy.ON_FAILURE,
        depends_on=tuple(
            Dependency(ReplicaType(other["name"]), other["status"])
            for other in job.get("dependsOn") or ()
        ),
    )


def _find_mpi_policy(runtime: Mapping[str, Any]) -> Mapping[str, Any]:
    return (runtime.get("mlPolicy") or {}).get(MPI) or {}


def _find_runtime_processes(mpi: Mapping[str, Any]) -> int | None:
    """Return the processes that a runtime sets; 1 leaves them to the GPUs of a node."""
    number = mpi.get("numProcPerNode") or 1
    return number if number > 1 else None


def _trainer_fields(trainer: Mapping[str, Any]) -> dict[str, Any]:
    names = ("image", "command", "args", "env")
    fields = {name: trainer[name] for name in names if trainer.get(name) is not None}
    if trainer.get("resourcesPerNode") is not None:
        fields["resources"] = trainer["resourcesPerNode"]
    return fields


def _initializer_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    uri = given.get("storageUri")
    env = [{"name": _STORAGE_URI, "value": uri}] if uri is not None else []
    fields: dict[str, Any] = {"env": [*env, *(given.get("env") or ())]}
    if given.get("secretRef") is not None:
        fields["envFrom"] = [{"secretRef": given["secretRef"]}]
    return fields


def _set_container_fields(
    template: Mapping[str, Any], name: str, fields: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the template with fields of its container ``name``, which becomes its first one."""
    containers = [
        _join_fields(container, fields) if container["name"] == name else container
        for container in sorted(
            template["spec"]["containers"], key=lambda container: container["name"] != name
        )
    ]
    return {**template, "spec": {**template["spec"], "containers": containers}}


def _join_fields(container: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    joined = {**container, **fields}
    if "env" in fields:
        joined["env"] = merge_lists("env", container.get("env") or (), fields["env"])
    if "envFrom" in fields:
        joined["envFrom"] = [*(container.get("envFrom") or ()), *fields["envFrom"]]
    if "resources" in fields:
        joined["resources"] = merge_patch(container.get("resources") or {}, fields["resources"])
    return joined


def _node_resources(trainer: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]]) -> Any:
    """Return the resources of the TrainJob, else the first of its runtime's nodes or launcher."""
    if trainer.get("resourcesPerNode") is not None:
        return trainer["resourcesPerNode"]
    for job in jobs:
        if job["name"] == NODE or _find_step(job) == "trainer":
            for container in job["template"]["spec"]["template"]["spec"]["containers"]:
                if container["name"] == FRAMEWORK.container and container.get("resources"):
                    return container["resources"]
    return None


def count_processes(
    policy: MLPolicy, given: int | None, resources: Mapping[str, Any] | None
) -> str | int:
    """Return the processes of a node with these resources; ``given`` is ``numProcPerNode``."""
    requests, limits = ((resources or {}).get(field) or {} for field in ("requests", "limits"))
    gpus = _count_gpus(requests) or _count_gpus(limits)
    cpus = _round_up(requests.get("cpu", 0)) or _round_up(limits.get("cpu", 0))
    return policy.count_processes(given, gpus, cpus)


def _count_gpus(resources: Mapping[str, Any]) -> int:
    return next(
        (_round_up(number) for name, number in resources.items() if "gpu" in name.lower()), 0
    )


def _round_up(quantity: object) -> int:
    """Return a quantity, rounded up as ``Quantity.Value`` does."""
    return math.ceil(parse_quantity(quantity))
