"""The pod of one replica, as Kubeflow's operator makes it: the same for every driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from danlu.training.framework import FieldRef, Framework, Template, Variable
from danlu.training.frameworks.pods import (
    containers,
    extended,
    main_container,
    with_containers,
    with_metadata,
    with_spec,
)
from danlu.training.topology import replica_name
from danlu.training.types import Job, ReplicaId, ReplicaType, RestartPolicy, Topology

__all__ = [
    "JOB_NAME",
    "JOB_ROLE",
    "OPERATOR_NAME",
    "REPLICA_INDEX",
    "REPLICA_TYPE",
    "render_pod",
    "replica_labels",
    "type_labels",
]

_PREFIX = "training.kubeflow.org"
JOB_NAME = f"{_PREFIX}/job-name"
OPERATOR_NAME = f"{_PREFIX}/operator-name"
REPLICA_TYPE = f"{_PREFIX}/replica-type"
REPLICA_INDEX = f"{_PREFIX}/replica-index"
JOB_ROLE = f"{_PREFIX}/job-role"


def render_pod(
    job: Job,
    framework: Framework,
    replica: ReplicaId,
    topology: Topology,
    *,
    decorated: bool = True,
) -> dict[str, Any]:
    """The Pod of ``replica``: its template with variables, labels, name and restart policy.

    The framework's variables come after the user's, so that of two of one name the framework's
    holds, as in Kubeflow. ``decorated`` adds what the framework needs on a cluster only (init
    containers, volumes of files); a driver of this machine leaves it out.
    """
    template = job.replicas[replica.type].template
    template = _with_labels(template, replica_labels(job, framework, replica))
    variables = framework.environment(job, replica, topology)
    template = _with_environment(template, [_entry(one) for one in variables], framework)
    template = with_spec(template, {"restartPolicy": _restart_policy(job, replica.type)})
    if decorated:
        template = framework.decorate(job, replica, topology, template)
    metadata = {"name": replica_name(job, replica), "namespace": job.namespace}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, **template["metadata"]},
        "spec": template["spec"],
    }


def type_labels(job: Job, framework: Framework, type: ReplicaType) -> dict[str, str]:
    """The labels that select all replicas of one type."""
    return {
        JOB_NAME: job.name,
        OPERATOR_NAME: f"{framework.kind.lower()}-controller",
        REPLICA_TYPE: type.lower(),
    }


def replica_labels(job: Job, framework: Framework, replica: ReplicaId) -> dict[str, str]:
    """The labels of one replica; the leader's say that it has the role of master."""
    role = {JOB_ROLE: "master"} if framework.leader(job) == replica else {}
    index = {REPLICA_INDEX: str(replica.index)}
    return {**type_labels(job, framework, replica.type), **index, **role}


def _with_labels(template: Template, labels: Mapping[str, str]) -> dict[str, Any]:
    known = (template.get("metadata") or {}).get("labels") or {}
    unnamed = {
        key: value
        for key, value in (template.get("metadata") or {}).items()
        if key in ("annotations", "finalizers") and value
    }
    return with_metadata({**template, "metadata": unnamed}, {"labels": {**known, **labels}})


def _with_environment(
    template: Template, entries: Sequence[Mapping[str, Any]], framework: Framework
) -> Template:
    """``entries`` after the variables of the containers that the framework means."""
    if not entries:
        return template
    if framework.everywhere:
        added = [extended(container, "env", *entries) for container in containers(template)]
        return with_spec(template, {"containers": added})
    main = main_container(template, framework.container)
    return with_containers(template, extended(main, "env", *entries), main)


def _entry(variable: Variable) -> dict[str, Any]:
    name, value = variable
    if isinstance(value, FieldRef):
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": value.path}}}
    return {"name": name, "value": value}


def _restart_policy(job: Job, type: ReplicaType) -> str:
    """What the kubelet does: what ``ExitCode`` means is decided by danlu, in a new pod."""
    policy = job.replicas[type].restart_policy
    return str(RestartPolicy.NEVER if policy is RestartPolicy.EXIT_CODE else policy)
