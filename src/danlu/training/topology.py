"""Where replicas are reachable on a cluster: a Service each, or one of all; Kubeflow's names."""

from __future__ import annotations

from dataclasses import dataclass

from danlu.training.framework import Framework
from danlu.training.pod_template import list_containers
from danlu.training.types import Job, ReplicaId


def declared_port(job: Job, replica: ReplicaId, framework: Framework) -> int:
    """Return the port that a template declares under the framework's name, or the default."""
    spec, name = job.replicas.get(replica.type), framework.container
    containers = list_containers(spec.template) if spec else ()
    own_first = sorted(containers, key=lambda container: container.get("name") != name)
    ports = (port for container in own_first for port in container.get("ports") or ())
    found = (port["containerPort"] for port in ports if port.get("name") == framework.port_name)
    return next(found, framework.port)


@dataclass(frozen=True)
class ServiceTopology:
    """The topology on Kubernetes: headless Services in the job's namespace.

    ``cluster_domain`` is appended to qualified names (the operator's ``CUSTOM_CLUSTER_DOMAIN``).
    """

    job: Job
    framework: Framework
    cluster_domain: str = ""
    on_cluster = True

    def host(self, replica: ReplicaId, *, qualified: bool = False) -> str:
        """Return the name of its Service; a ``qualified`` one includes the namespace."""
        name = self.framework.pod_name(self.job, replica)
        if subdomain := self.framework.subdomain(self.job):
            name = f"{name}.{subdomain}"
        if not qualified:
            return name
        domain = f".{self.cluster_domain}" if self.cluster_domain else ""
        return f"{name}.{self.job.namespace}.svc{domain}"

    def port(self, replica: ReplicaId) -> int:
        """Return the port its template declares."""
        return declared_port(self.job, replica, self.framework)

    def directory(self, replica: ReplicaId) -> str:
        """Return where the ConfigMap with the framework's files is mounted."""
        return self.framework.files_directory
