"""Where the replicas of a job are reached on a cluster: a Service each, by Kubeflow's names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from danlu.training.framework import Framework, Template
from danlu.training.frameworks.pods import containers
from danlu.training.types import Job, ReplicaId

__all__ = ["ServiceTopology", "declared_port", "replica_name"]

_DIRECTORY = "/etc/mpi"


def replica_name(job: Job, replica: ReplicaId) -> str:
    """The name of a replica's pod and Service: ``<job>-<type>-<index>``."""
    return f"{job.name}-{replica}"


def declared_port(job: Job, replica: ReplicaId, framework: Framework) -> int:
    """The port that a replica's template declares by the framework's name, else its default."""
    spec = job.replicas.get(replica.type)
    found = _ports(spec.template, framework) if spec else iter(())
    return next(found, framework.port)


@dataclass(frozen=True)
class ServiceTopology:
    """The topology of Kubernetes: headless Services in the job's namespace.

    ``cluster_domain`` is added to qualified names (the operator's ``CUSTOM_CLUSTER_DOMAIN``);
    ``framework`` is that of the job's kind, looked up where it is not given.
    """

    job: Job
    cluster_domain: str = ""
    framework: Framework | None = None

    def host(self, replica: ReplicaId, *, qualified: bool = False) -> str:
        """The name of its Service, with the namespace where ``qualified``."""
        name = replica_name(self.job, replica)
        if not qualified:
            return name
        domain = f".{self.cluster_domain}" if self.cluster_domain else ""
        return f"{name}.{self.job.namespace}.svc{domain}"

    def port(self, replica: ReplicaId) -> int:
        """The port its template declares."""
        return declared_port(self.job, replica, self.framework or _framework_of(self.job))

    def directory(self, replica: ReplicaId) -> str:
        """Where the ConfigMap with the framework's files is mounted."""
        return _DIRECTORY


def _framework_of(job: Job) -> Framework:
    from danlu.training.registry import framework_of

    return framework_of(job.kind)


def _ports(template: Template, framework: Framework) -> Iterator[int]:
    """The numbers of ports of that name, those of the framework's own container first."""
    own = sorted(containers(template), key=lambda one: one.get("name") != framework.container)
    for container in own:
        for port in container.get("ports") or ():
            if port.get("name") == framework.port_name:
                yield port["containerPort"]
