"""Jobs of a notebook in a pod: on its cluster, in its image, submitted by danlu on the host."""

from __future__ import annotations

from msgspec.structs import replace

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.kubernetes.settings import read_settings
from danlu.errors import UsageError
from danlu.jobs.kubernetes.client import KubernetesJobs
from danlu.jobs.local.file_exchange import ENVIRONMENT_LABEL
from danlu.jobs.types import Submission
from danlu.kube.kubeconfig import load_cluster_config
from danlu.training.pod_template import change_templates, pod_spec, replace_spec
from danlu.training.registry import find_job_framework


class PodJobs(KubernetesJobs):
    """The jobs of the notebooks of one environment in a pod, which run in its image only."""

    def __init__(self, environment: EnvironmentDirectory) -> None:
        spec, settings = environment.read_spec(), read_settings(environment)
        super().__init__(
            load_cluster_config(context=settings.context),
            namespace=settings.namespace,
            # For hints with commands, which the user runs on the host.
            where=spec.context or spec.engine,
            pull_secret=settings.pull_secret,
            renewing=load_cluster_config(context=settings.context),
            # The pod's name, because others may have an environment of the same name there.
            labels={ENVIRONMENT_LABEL: settings.name},
        )
        self._image = settings.image

    async def submit(self, submission: Submission) -> str:
        """Start a job; raise :class:`UsageError` if it would see more than the environment does."""
        images = {image.name for image in submission.images.values()}
        templates = [spec.template for spec in submission.job.replicas.values()]
        volumes = [volume for item in templates for volume in pod_spec(item).get("volumes") or ()]
        if images != {self._image} or volumes or submission.objects or submission.code:
            raise UsageError("jobs of an environment's notebook run in its image")
        job = submission.job
        if not find_job_framework(job).uses_api_server:
            # As programs of the environment, they get no access to the API server.
            denied = {"automountServiceAccountToken": False}
            job = change_templates(job, lambda template: replace_spec(template, denied))
        # Values are pickled there, and unpickled in the kernel, which runs in the same image.
        return await super().submit(replace(submission, job=job, trusted=True))
