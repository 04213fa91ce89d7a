"""Render the pod of a replica as Kubeflow's operator does. All drivers use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from danlu.training.framework import EnvVar, FieldRef, Framework, PodLabels, PodTemplate
from danlu.training.names import ANNOTATION_PREFIX
from danlu.training.pod_template import (
    append_to,
    change_containers,
    find_main_container,
    list_containers,
    replace_container,
    replace_metadata,
    replace_spec,
)
from danlu.training.types import Job, ReplicaId, ReplicaType, RestartPolicy, Topology

_PREFIX = "training.kubeflow.org"
JOB_NAME, REPLICA_TYPE, REPLICA_INDEX = msgspec.structs.astuple(PodLabels())
OPERATOR_NAME = f"{_PREFIX}/operator-name"
JOB_ROLE = f"{_PREFIX}/job-role"
LEADER_ROLES = ("master", "launcher")
"""The roles of the replica that represents its job; the MPI operator has another one."""
OWN_INDEX = f"{ANNOTATION_PREFIX}/replica-index"
"""Label of the replica's index if a framework gives :data:`REPLICA_INDEX` another meaning."""

RESTART_COUNT = "DANLU_RESTART_COUNT"
"""Variable with the number of restarts of a replica, alone or with its job; not set for none."""


def render_pod(
    job: Job,
    framework: Framework,
    replica: ReplicaId,
    topology: Topology,
    *,
    for_cluster: bool = True,
) -> dict[str, Any]:
    """Return the Pod of ``replica``: its template with variables, labels, name and restart policy.

    The framework's variables follow the user's and so override them, as in Kubeflow.
    ``for_cluster`` adds what the framework needs only there (init containers, volumes of files).
    """
    template = job.replicas[replica.type].template
    template = _add_labels(template, replica_labels(job, framework, replica))
    variables = [*framework.build_env(job, replica, topology)]
    if restarts := job.status.restart_count(replica):
        variables.append((RESTART_COUNT, str(restarts)))
    template = _add_env(template, [_env_entry(variable) for variable in variables], framework)
    if by_container := framework.build_container_env(job, replica, topology):
        template = _add_env_by_container(template, by_container)
    template = framework.mark_pod(job, replica, template)
    template = replace_spec(
        template, {"restartPolicy": _pod_restart_policy(job, framework, replica.type)}
    )
    if for_cluster:
        template = framework.mutate_pod(job, replica, topology, template)
    metadata = {"name": framework.pod_name(job, replica), "namespace": job.namespace}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, **template["metadata"]},
        "spec": template["spec"],
    }


def type_labels(job: Job, framework: Framework, type: ReplicaType) -> dict[str, str]:
    """Return the labels that select all replicas of one type."""
    return {
        JOB_NAME: job.name,
        OPERATOR_NAME: framework.operator_name,
        REPLICA_TYPE: type.lower(),
    }


def replica_labels(job: Job, framework: Framework, replica: ReplicaId) -> dict[str, str]:
    """Return the labels of one replica; the leader gets the role of master."""
    role = {JOB_ROLE: "master"} if framework.leader(job) == replica else {}
    index = {REPLICA_INDEX: str(replica.index)}
    return {**type_labels(job, framework, replica.type), **index, **role}


def read_replica_index(labels: Mapping[str, str], name: str = REPLICA_INDEX) -> str:
    """Return the index of the replica, usually in the label ``name``; empty without one."""
    return labels.get(OWN_INDEX) or labels.get(name, "")


def parse_replica_id(labels: Mapping[str, str], framework: Framework) -> ReplicaId | None:
    """Return the replica that labels name; unknown replica types keep their name."""
    names = framework.pod_labels
    type = labels.get(names.type, "")
    index = read_replica_index(labels, names.index)
    if not type or not index.isdecimal():
        return None
    known = (known for known in framework.replica_types if known.lower() == type)
    return ReplicaId(next(known, ReplicaType(type)), int(index))


def _add_labels(template: PodTemplate, labels: Mapping[str, str]) -> dict[str, Any]:
    known = (template.get("metadata") or {}).get("labels") or {}
    unnamed = {
        key: value
        for key, value in (template.get("metadata") or {}).items()
        if key in ("annotations", "finalizers") and value
    }
    return replace_metadata({**template, "metadata": unnamed}, {"labels": {**known, **labels}})


def _add_env(
    template: PodTemplate, entries: Sequence[Mapping[str, Any]], framework: Framework
) -> PodTemplate:
    """Append ``entries`` to the environment of the containers that the framework selects.

    They override variables of the main container, as in Kubeflow, but not of sidecars: what a
    manifest sets there is meant for that container.
    """
    if not entries:
        return template
    main = find_main_container(template, framework.container)
    if not framework.env_in_all_containers:
        return replace_container(template, append_to(main, "env", *entries), main)
    added = [
        append_to(
            container,
            "env",
            *(entries if container is main else _missing_entries(container, entries)),
        )
        for container in list_containers(template)
    ]
    return replace_spec(template, {"containers": added})


def _add_env_by_container(
    template: PodTemplate, by_container: Mapping[str, Sequence[EnvVar]]
) -> PodTemplate:
    def change(container: Mapping[str, Any]) -> Mapping[str, Any]:
        variables = by_container.get(container.get("name") or "")
        return append_to(container, "env", *map(_env_entry, variables)) if variables else container

    return change_containers(template, change)


def _missing_entries(
    container: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    known = {variable.get("name") for variable in container.get("env") or ()}
    return [entry for entry in entries if entry["name"] not in known]


def _env_entry(variable: EnvVar) -> dict[str, Any]:
    name, value = variable
    if isinstance(value, FieldRef):
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": value.path}}}
    return {"name": name, "value": value}


def _pod_restart_policy(job: Job, framework: Framework, type: ReplicaType) -> str:
    """Return the pod's restart policy: ``Never`` if only danlu knows when to recreate it."""
    policy = job.replicas[type].restart_policy
    recreated = job.job_restart_policy is not None or type in framework.batch_types
    if recreated or policy is RestartPolicy.EXIT_CODE:
        policy = RestartPolicy.NEVER
    return str(policy)
