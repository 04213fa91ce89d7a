"""Convert jobs of ``kubeflow.org/v1`` to TrainJobs, and back.

What both kinds have is carried over. What the other one lacks is named: in ``Conversion.lost`` if
the job still does the same work, else in an error, because the result would be another job. So
nodes that differ, and nodes that would not find one another, are refused.

Variables need no table: those that the two jobs set are compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from danlu.training.document import findings_error
from danlu.training.framework import FieldError, Framework, PodTemplate
from danlu.training.frameworks.train_job import FRAMEWORK, NODE, find_policy
from danlu.training.manifest_schema import INT32
from danlu.training.names import RESTART_POLICY_ANNOTATION, WHOLE_JOB
from danlu.training.pod_template import (
    add_default_port,
    find_main_container,
    list_containers,
    pod_spec,
    replace_container,
    replace_spec,
)
from danlu.training.registry import BUILT_IN_FRAMEWORKS, DEFAULT_FRAMEWORK
from danlu.training.rendering import JOB_NAME
from danlu.training.restarts import decides_success
from danlu.training.train_job.comparison import (
    UNBUFFERED,
    compare_variables,
    find_differences,
    list_needed_variables,
    read_variables,
    starts_launcher,
)
from danlu.training.train_job.reader import count_processes
from danlu.training.types import (
    CleanPodPolicy,
    Job,
    JobRestartPolicy,
    ReplicaId,
    ReplicaSpec,
    ReplicaType,
    RestartPolicy,
)
from danlu.training.validation import check_job

#: A Job of Kubernetes always has a limit; this one is never reached.
_NO_LIMIT = INT32

#: Fields in which nodes may differ and still do the same work; all get those of the first type.
_TOLERATED_FIELDS = frozenset(
    {"imagePullPolicy", "metadata", "ports", "terminationGracePeriodSeconds"}
)
_PROCESSES_FIELD = "nprocPerNode"
_NAMES_OF_JOB_SET = r"JOB_COMPLETION_INDEX|(?:jobset\.sigs|batch\.kubernetes)\.[\w./-]+"
#: Options of a TrainJob with what its runtime says about a JobSet.
_LOST_OF_JOB_SET = {
    "subdomain": "network.subdomain",
    "network": "network",
    "restartStrategy": "failurePolicy.restartStrategy",
    "jobMetadata": "metadata of the Jobs of replicated jobs",
}


class Conversion(msgspec.Struct, frozen=True):
    """A job as the other kind, and what that cannot express; paths are those of the source."""

    job: Job
    lost: tuple[FieldError, ...]


# -- to a TrainJob --------------------------------------------------------------------------------


def convert_to_train_job(
    job: Job,
    framework: Framework,
    document: Mapping[str, Any],
    *,
    start_with_launcher: bool = False,
) -> Conversion:
    """Return a job of ``kubeflow.org/v1`` as a TrainJob.

    ``document`` is its manifest, or ``{}``. With ``start_with_launcher`` the launcher
    of the policy starts the program, and sets variables that otherwise only v1 has. Raises
    :class:`~danlu.training.document.ManifestError` if the TrainJob would be another job.
    """
    path = f"spec.{framework.replicas_field}"
    types = [type for type in framework.node_types if job.replica_count(type)]
    refused = [
        FieldError(f"{path}[{type}]", f"a TrainJob has no {type}", "its nodes are all alike")
        for type in job.replicas
        if type not in framework.node_types
    ]
    refused += _check_values(job, framework, types)
    differences = [*_compare_templates(job, framework, types)]
    refused += [error for error in differences if not _is_tolerated(error)]
    if refused:
        raise findings_error(document, sorted(refused), job.kind, "cannot be written as a TrainJob")
    converted = _build_train_job(job, framework, types)
    if start_with_launcher:
        converted = _start_with_launcher(converted)
    # An elastic policy has variables that are not listed one by one.
    fixed = msgspec.structs.replace(job, elastic_policy=None)
    changes = compare_variables((fixed, framework), (converted, FRAMEWORK))
    missing = list_needed_variables(changes.missing, converted)
    names, nodes = ", ".join(missing), converted.replica_count(NODE)
    refused = [*changes.list_errors(path)]
    if missing and not framework.ml_policy and nodes > 1:
        message = f"its {nodes} nodes would not find one another: no runtime sets {names}"
        refused.append(FieldError(path, message))
    if refused:
        raise findings_error(document, refused, job.kind, "cannot be written as a TrainJob")
    lost = {
        *filter(_is_tolerated, differences),
        *_list_lost_policies(job, document, nodes),
        *_list_lost_rules(job, framework, types),
        *_list_lost_processes(job, framework, converted),
        *_list_references(job, framework, types),
    }
    if missing:
        launchers = find_policy(framework.ml_policy).launchers
        hint = f"it sets {', '.join(changes.new)}" if changes.new else ""
        if launchers:
            hint = f"start the program with {launchers[0]}, which does"
        lost.add(FieldError(path, f"a TrainJob does not set {names}", hint))
    return Conversion(check_job(converted, FRAMEWORK), tuple(sorted(lost)))


def _check_values(
    job: Job, framework: Framework, types: Sequence[ReplicaType]
) -> Iterator[FieldError]:
    """Yield errors for values that v1 allows and a TrainJob does not."""
    if job.run_policy.active_deadline_seconds == 0:
        path = "spec.runPolicy.activeDeadlineSeconds"
        yield FieldError(path, "must be at least 1 in a TrainJob")
    for type in types:
        template = job.replicas[type].template
        main = find_main_container(template, framework.container)
        others = [container for container in list_containers(template) if container is not main]
        others += pod_spec(template).get("initContainers") or ()
        if any(container.get("name") == FRAMEWORK.container for container in others):
            path = f"spec.{framework.replicas_field}[{type}].template.spec.containers"
            message = f"'{FRAMEWORK.container}' is the name of a TrainJob's main container"
            yield FieldError(path, message, "rename the other container")


def _build_train_job(job: Job, framework: Framework, types: Sequence[ReplicaType]) -> Job:
    template, first = _build_node_template(job, framework, types[0]), job.replicas[types[0]]
    never = first.restart_policy is RestartPolicy.NEVER
    limit, together = 0 if never else job.run_policy.backoff_limit, job.job_restart_policy
    if together is not None:
        restarts = _NO_LIMIT if together.max_restarts is None else together.max_restarts
        limit, together = 0, JobRestartPolicy(restarts) if restarts else None
    if limit == 0:  # a kubelet must not restart a container before its Job has failed
        template = replace_spec(template, {"restartPolicy": str(RestartPolicy.NEVER)})
    policy = find_policy(framework.ml_policy)
    given = framework.count_processes(job, types[0]) if policy.takes_processes else 0
    resources = find_main_container(template, FRAMEWORK.container).get("resources")
    nodes = sum(map(job.replica_count, types))
    return Job(
        kind=FRAMEWORK.kind,
        api_version=FRAMEWORK.api_version,
        name=job.name,
        namespace=job.namespace,
        labels=job.labels,
        annotations={
            name: value
            for name, value in job.annotations.items()
            if name != RESTART_POLICY_ANNOTATION
        },
        replicas={NODE: ReplicaSpec(nodes, template, RestartPolicy.ON_FAILURE)},
        run_policy=msgspec.structs.replace(
            job.run_policy,
            clean_pod_policy=CleanPodPolicy.RUNNING,
            backoff_limit=_NO_LIMIT if limit is None else limit,
            scheduling_policy=None,
        ),
        job_restart_policy=together,
        options={
            "policy": framework.ml_policy,
            "processes": count_processes(policy, given or None, resources),
            "hasTrainer": True,
            "successPolicy": {},
        },
    )


def _start_with_launcher(job: Job) -> Job:
    """Return the TrainJob with its program started by the launcher of its policy, if it has one."""
    policy, spec = find_policy(job.options["policy"]), job.replicas[NODE]
    main = find_main_container(spec.template, FRAMEWORK.container)
    command = list(main.get("command") or ())
    if not policy.launchers or not command or starts_launcher(job):
        return job
    words = command[1:] if command[0] == "python" else ["--no-python", *command]
    started = {**main, "command": [policy.launchers[0], *words]}
    template = replace_container(spec.template, started, main)
    replicas = {NODE: msgspec.structs.replace(spec, template=template)}
    return msgspec.structs.replace(job, replicas=replicas)


def _list_lost_policies(job: Job, document: Mapping[str, Any], nodes: int) -> Iterator[FieldError]:
    """Yield the policies of the whole job that a TrainJob does not have."""
    policy, path = job.run_policy, "spec.runPolicy"
    given = "cleanPodPolicy" in ((document.get("spec") or {}).get("runPolicy") or {})
    if policy.clean_pod_policy is CleanPodPolicy.ALL:
        message = "All cannot be expressed: nodes that have ended are kept with the TrainJob"
        hint = "ttlSecondsAfterFinished deletes both"
        yield FieldError(f"{path}.cleanPodPolicy", message, hint)
    elif given and policy.clean_pod_policy is CleanPodPolicy.NONE and nodes > 1:
        message = "None cannot be expressed: nodes that still run when the job ends are deleted"
        yield FieldError(f"{path}.cleanPodPolicy", message)
    if policy.scheduling_policy is not None:
        for name in msgspec.to_builtins(policy.scheduling_policy):
            hint = "write podGroupPolicy, for the scheduler of your cluster, in the runtime"
            yield FieldError(f"{path}.schedulingPolicy.{name}", "cannot be expressed", hint)
    if job.elastic_policy is not None:
        names = ", ".join(sorted(msgspec.to_builtins(job.elastic_policy)))
        message = (
            f"cannot be expressed ({names}): there are always {nodes} nodes, and all must succeed"
        )
        yield FieldError("spec.elasticPolicy", message)
    for name in sorted(job.options.keys() - {_PROCESSES_FIELD}):
        yield FieldError(f"spec.{name}", "cannot be expressed")


def _list_lost_rules(
    job: Job, framework: Framework, types: Sequence[ReplicaType]
) -> Iterator[FieldError]:
    """Yield the rules of single replicas: when they are restarted, and which end the job."""
    path, rule = f"spec.{framework.replicas_field}", job.replicas[types[0]].restart_policy
    for type in types:
        policy, field = job.replicas[type].restart_policy, f"{path}[{type}].restartPolicy"
        if policy is RestartPolicy.EXIT_CODE and rule is not RestartPolicy.NEVER:
            message = "ExitCode cannot be expressed: a node is restarted after any exit code"
            yield FieldError(field, message)
        elif policy is RestartPolicy.ALWAYS and rule is not RestartPolicy.NEVER:
            message = "Always cannot be expressed: a node that has succeeded is not restarted"
            yield FieldError(field, message)
        elif policy is not rule and job.job_restart_policy is None:
            message = f"{policy} cannot be expressed: all nodes have that of the {types[0]}, {rule}"
            yield FieldError(field, message)
    sidecars = list_containers(job.replicas[types[0]].template)[1:]
    if sidecars and framework.env_in_all_containers:
        message = f"variables are set in the container {FRAMEWORK.container} only"
        yield FieldError(f"{path}[{types[0]}].template.spec.containers", message)
    if len(types) > 1 and decides_success(job, framework, types[0]):
        message = f"a TrainJob does not succeed with its {types[0]}, but when all nodes have"
        yield FieldError(f"{path}[{types[0]}]", message)


def _list_lost_processes(job: Job, framework: Framework, converted: Job) -> Iterator[FieldError]:
    """Yield an error if a launcher counts the processes in v1, and does not in the TrainJob."""
    policy, processes = find_policy(framework.ml_policy), str(converted.options["processes"])
    counted = policy.takes_processes and processes.isdecimal()
    if counted and not framework.count_processes(job, next(iter(job.replicas))):
        message = f"auto cannot be expressed without GPUs: a node starts {processes}"
        hint = "write their number, or --nproc-per-node=auto in the command"
        yield FieldError(f"spec.{_PROCESSES_FIELD}", message, hint)


def _list_references(
    job: Job, framework: Framework, types: Sequence[ReplicaType]
) -> Iterator[FieldError]:
    """Yield the names of pods and labels in templates: those of a TrainJob's nodes are others."""
    pods = "|".join(type.lower() for type in job.replicas)
    pattern = (
        rf"\b{re.escape(job.name)}-(?:{pods})-\d+|{re.escape(JOB_NAME.partition('/')[0])}/[\w-]+"
    )
    for type in types:
        for name in _find_mentions(pattern, job.replicas[type].template):
            hint = f"nodes are called {job.name}-node-0-0.{job.name} …, with labels of JobSet"
            yield FieldError(
                f"spec.{framework.replicas_field}[{type}].template", f"mentions {name}", hint
            )


def _find_mentions(pattern: str, template: PodTemplate) -> list[str]:
    return sorted(set(re.findall(pattern, json.dumps(template))))


# -- to v1 ----------------------------------------------------------------------------------------


def convert_to_v1(job: Job, document: Mapping[str, Any]) -> Conversion:
    """Return a TrainJob as a job of ``kubeflow.org/v1``.

    The kind is that of its policy, without one the kind that serves any program. ``document`` is
    the TrainJob's manifest, or ``{}``. Raises
    :class:`~danlu.training.document.ManifestError` if the result would be another job.
    """
    policy = job.options["policy"]
    frameworks = (other for other in BUILT_IN_FRAMEWORKS if policy and other.ml_policy == policy)
    framework = next(frameworks, DEFAULT_FRAMEWORK)
    converted = _build_v1_job(job, framework)
    changes = compare_variables((job, FRAMEWORK), (converted, framework))
    refused = [*_check_stages(job), *changes.list_errors("spec.trainer")]
    if refused:
        problem = f"cannot be written as a {framework.kind}"
        raise findings_error(document, refused, job.kind, problem)
    lost = [*_list_lost_of_runtime(job, framework, converted)]
    if added := list_needed_variables(changes.added, job):
        message = f"a {framework.kind} also sets {', '.join(added)}"
        lost.append(FieldError("spec.trainer", message))
    return Conversion(check_job(converted, framework), tuple(sorted(lost)))


def _check_stages(job: Job) -> Iterator[FieldError]:
    """Yield errors for stages, and for a success that is not that of all nodes."""
    for type in job.replicas:
        if type != NODE:
            message = f"{type} has no equivalent: replicas of v1 do not wait for others"
            yield FieldError("spec.runtimeRef", message, "prepare the data in an init container")
    if job.options["successPolicy"].get("operator") == "Any" and job.replica_count(NODE) > 1:
        message = "successPolicy Any has no equivalent: all nodes must succeed"
        yield FieldError("spec.runtimeRef", message)


def _build_v1_job(job: Job, framework: Framework) -> Job:
    template = _rename_container(job.replicas[NODE].template, FRAMEWORK, framework)
    spec = {name: value for name, value in pod_spec(template).items() if name != "restartPolicy"}
    template = add_default_port({**template, "spec": spec}, framework)
    limit, together = job.run_policy.backoff_limit, job.job_restart_policy
    annotations = dict(job.annotations)
    if together is not None:
        limit = together.max_restarts
        annotations[RESTART_POLICY_ANNOTATION] = WHOLE_JOB
    never = limit == 0
    limit = None if never or limit == _NO_LIMIT else limit
    rule = RestartPolicy.NEVER if never else RestartPolicy.ON_FAILURE
    first, last, nodes = framework.node_types[0], framework.node_types[-1], job.replica_count(NODE)
    counts = {first: 1, last: nodes - 1} if first != last else {last: nodes}
    return msgspec.structs.replace(
        job,
        kind=framework.kind,
        replicas={
            type: ReplicaSpec(number, template, rule) for type, number in counts.items() if number
        },
        annotations=annotations,
        run_policy=msgspec.structs.replace(job.run_policy, backoff_limit=limit),
        job_restart_policy=JobRestartPolicy(limit) if together is not None else None,
        options=(
            {_PROCESSES_FIELD: str(job.options["processes"])}
            if find_policy(job.options["policy"]).takes_processes
            else {}
        ),
        api_version=framework.api_version,
    )


def _list_lost_of_runtime(job: Job, framework: Framework, converted: Job) -> Iterator[FieldError]:
    """Yield what the runtime of a TrainJob says and v1 cannot; the runtime has no path in it."""
    path = "spec.runtimeRef"
    if job.options.get("podGroupPolicy"):
        hint = "a flag of the operator chooses the scheduler of gangs"
        yield FieldError(path, "podGroupPolicy cannot be expressed", hint)
    if injected := job.options.get("envInjection"):
        names = ", ".join(name for containers in injected.values() for name in containers)
        yield FieldError(
            path, f"envInjection cannot be expressed: {names} would get no PET_ variables"
        )
    for name, meaning in _LOST_OF_JOB_SET.items():
        if job.options.get(name):
            yield FieldError(path, f"{meaning} cannot be expressed: v1 has no JobSet")
    if claims := FRAMEWORK.list_claims(job):
        message = f"volumeClaimPolicies cannot be expressed: {', '.join(claims)} must exist"
        yield FieldError(path, message, "create the PersistentVolumeClaims, or use --claim here")
    pattern = rf"\b{re.escape(job.name)}-node-0-\d+|{_NAMES_OF_JOB_SET}"
    for name in _find_mentions(pattern, job.replicas[NODE].template):
        hint = f"replicas are called {job.name}-TYPE-0 …, with labels of Kubeflow"
        yield FieldError("spec.trainer", f"mentions {name}", hint)
    if job.job_restart_policy is not None:
        message = f"failurePolicy becomes {RESTART_POLICY_ANNOTATION}, which only danlu reads"
        yield FieldError(path, message)
    if len(converted.replicas) > 1:
        first = next(iter(converted.replicas))
        message = f"the job succeeds with its {first}, not when all nodes have succeeded"
        yield FieldError(path, message)


# -- templates ------------------------------------------------------------------------------------


def _build_node_template(job: Job, framework: Framework, type: ReplicaType) -> PodTemplate:
    """Return the template of a type as that of a node, without the port of v1."""
    template = _rename_container(job.replicas[type].template, framework, FRAMEWORK)
    main, *others = list_containers(template)
    env = list(main.get("env") or ())
    names = {variable["name"] for variable in env}
    variables = read_variables(job, framework, ReplicaId(type, 0))
    if UNBUFFERED in variables.keys() - names:
        env.append({"name": UNBUFFERED, "value": "1"})
    ports = [port for port in main.get("ports") or () if port.get("name") != framework.port_name]
    node = {name: value for name, value in main.items() if name not in ("env", "ports")}
    node |= {name: value for name, value in {"env": env, "ports": ports}.items() if value}
    spec = {name: value for name, value in pod_spec(template).items() if name != "restartPolicy"}
    return {**template, "spec": {**spec, "containers": [node, *others]}}


def _rename_container(template: PodTemplate, old: Framework, new: Framework) -> PodTemplate:
    """Return the template with its main container first, and called as that of another framework.

    Its name is also where its resources are referred to (``resourceFieldRef``).
    """
    main = find_main_container(template, old.container)
    others = [container for container in list_containers(template) if container is not main]
    spec = {**pod_spec(template), "containers": [{**main, "name": new.container}, *others]}

    def rename(value: Any) -> Any:
        if isinstance(value, list):
            return [rename(member) for member in value]
        if not isinstance(value, Mapping):
            return value
        return {
            key: new.container
            if (key, member) == ("containerName", main.get("name"))
            else rename(member)
            for key, member in value.items()
        }

    return {**template, "spec": rename(spec)}


def _compare_templates(
    job: Job, framework: Framework, types: Sequence[ReplicaType]
) -> Iterator[FieldError]:
    """Yield the fields in which the template of a type differs from the first one's."""
    for type in types[1:]:
        first, other = (_build_node_template(job, framework, each) for each in (types[0], type))
        for path in find_differences(first, other):
            field = f"spec.{framework.replicas_field}[{type}].template{path}"
            message = f"differs from that of the {types[0]}, which all nodes of a TrainJob get"
            yield FieldError(field, message)


def _is_tolerated(difference: FieldError) -> bool:
    return not _TOLERATED_FIELDS.isdisjoint(re.findall(r"\w+", difference.path))
