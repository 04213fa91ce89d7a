"""Kubernetes as a service that runs jobs."""

from __future__ import annotations

from danlu.engine.settings import Settings
from danlu.jobs.kubernetes.client import KubernetesJobs
from danlu.jobs.services import JobService, JobTarget
from danlu.jobs.types import JobBackend
from danlu.kube.kubeconfig import load_cluster_config


class KubernetesService(JobService):
    """Jobs of a cluster."""

    def open_backend(self, target: JobTarget, settings: Settings) -> JobBackend:
        """See :class:`~danlu.jobs.services.JobService`."""
        cluster = target.cluster
        assert cluster is not None
        config = settings.config.kubernetes
        return KubernetesJobs(
            load_cluster_config(context=cluster.context),
            namespace=cluster.namespace,
            where=target.name,
            pull_secret=config.image_pull_secret,
            checkpoint_claim=config.checkpoint_claim,
            renewing=load_cluster_config(context=cluster.context),
            trusted=config.trust_results,
        )

    def find_registry(self, target: JobTarget, settings: Settings) -> str:
        """See :class:`~danlu.jobs.services.JobService`."""
        return settings.config.kubernetes.registry


SERVICE = KubernetesService()
