"""Jobs for framework tests, and the names of their replicas on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from danlu.training.framework import EnvVar, FieldRef, Framework, ReplicaCounts
from danlu.training.pod_template import find_main_container, list_containers
from danlu.training.types import (
    ElasticPolicy,
    Job,
    ReplicaId,
    ReplicaSpec,
    ReplicaType,
    RestartPolicy,
)

Shown = list[str]
"""Variables as golden files have them: ``NAME=value``, or ``NAME=<status.podIP>`` for a field."""


class FakeTopology:
    """Names as on Kubernetes, one service per pod in one namespace, for jobs of one machine."""

    on_cluster = False

    def __init__(self, job: Job, framework: Framework, *, domain: str = "") -> None:
        self._job = job
        self._framework = framework
        self._domain = domain

    def host(self, replica: ReplicaId, *, qualified: bool = False) -> str:
        name = f"{self._job.name}-{replica}"
        if not qualified:
            return name
        return ".".join(filter(None, (name, self._job.namespace, "svc", self._domain)))

    def port(self, replica: ReplicaId) -> int:
        template = self._job.replicas[replica.type].template
        ports = find_main_container(template, self._framework.container).get("ports", ())
        expected = self._framework.port_name
        return next(
            (port["containerPort"] for port in ports if port["name"] == expected),
            self._framework.port,
        )

    def directory(self, replica: ReplicaId) -> str:
        return "/etc/mpi"


def template(
    framework: Framework,
    *,
    port: int | None = None,
    env: Mapping[str, str] | None = None,
    sidecar: str = "",
    limits: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a pod template with the framework's container, after an optional sidecar."""
    main: dict[str, Any] = {"name": framework.container, "image": "example/train:1"}
    if port is not None:
        main["ports"] = [{"name": framework.port_name, "containerPort": port}]
    if env:
        main["env"] = [{"name": name, "value": value} for name, value in env.items()]
    if limits:
        main["resources"] = {"limits": dict(limits)}
    all = [{"name": sidecar, "image": "example/proxy:1"}, main] if sidecar else [main]
    metadata = {"metadata": {"annotations": dict(annotations)}} if annotations else {}
    return {**metadata, "spec": {"containers": all}}


def job_of(
    framework: Framework,
    replicas: Mapping[str, int],
    *,
    pod: Mapping[str, Any] | None = None,
    name: str = "j",
    namespace: str = "ns",
    options: Mapping[str, Any] | None = None,
    elastic: ElasticPolicy | None = None,
    success: str = "",
    restart: RestartPolicy = RestartPolicy.NEVER,
) -> Job:
    """Return a job with these replica counts, all with the same template."""
    used = template(framework) if pod is None else pod
    return Job(
        kind=framework.kind,
        name=name,
        namespace=namespace,
        replicas={
            ReplicaType(type): ReplicaSpec(number, used, restart)
            for type, number in replicas.items()
        },
        options=options or {},
        elastic_policy=elastic,
        success_policy=success,
    )


def replica_of(name: str, framework: Framework) -> ReplicaId:
    """Return the replica id for a name such as ``worker-0``."""
    type, index = name.rsplit("-", 1)
    exact = next(
        replica_type for replica_type in framework.replica_types if replica_type.lower() == type
    )
    return ReplicaId(exact, int(index))


def members_of(job: Job) -> list[ReplicaId]:
    return [
        ReplicaId(type, index)
        for type, spec in job.replicas.items()
        for index in range(spec.replicas)
    ]


def variables(
    framework: Framework, job: Job, replica: str, *, domain: str = ""
) -> Sequence[EnvVar]:
    """Return the variables added to a replica, in order."""
    cluster = FakeTopology(job, framework, domain=domain)
    return framework.build_env(job, replica_of(replica, framework), cluster)


def values(framework: Framework, job: Job, replica: str, *, domain: str = "") -> dict[str, str]:
    """Return the variables by name; a field of the pod is shown as ``<status.podIP>``."""
    result = variables(framework, job, replica, domain=domain)
    assert len(dict(result)) == len(result), "a duplicate replica type variable"
    return {name: _format_value(value) for name, value in result}


def names(framework: Framework, job: Job, replica: str) -> list[str]:
    return [name for name, _ in variables(framework, job, replica)]


def render_added_variables(
    framework: Framework, job: Job, *, domain: str = ""
) -> dict[str, dict[str, Shown]]:
    """Return all added variables by replica and container."""
    return {
        str(replica): {
            container["name"]: _format_variables(framework, job, replica, domain)
            for container in list_containers(job.replicas[replica.type].template)
            if framework.env_in_all_containers or container["name"] == framework.container
        }
        for replica in members_of(job)
    }


def _format_variables(framework: Framework, job: Job, replica: ReplicaId, domain: str) -> Shown:
    env = framework.build_env(job, replica, FakeTopology(job, framework, domain=domain))
    return [f"{name}={_format_value(value)}" for name, value in env]


def _format_value(value: str | FieldRef) -> str:
    return f"<{value.path}>" if isinstance(value, FieldRef) else value


def tallies(**counts: ReplicaCounts) -> dict[ReplicaType, ReplicaCounts]:
    """Return replica counts by replica type."""
    return {ReplicaType(type): tally for type, tally in counts.items()}


def findings(framework: Framework, job: Job) -> list[str]:
    """Return the framework's findings as ``path: message``, sorted by path."""
    return [f"{finding.path}: {finding.message}" for finding in sorted(framework.validate(job))]
