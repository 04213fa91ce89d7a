"""SageMaker as a service that runs jobs."""

from __future__ import annotations

from collections.abc import Mapping

from danlu.engine.contexts import SageMakerAccount
from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.jobs.sagemaker.client import SageMakerJobs
from danlu.jobs.sagemaker.probes import list_account_probes
from danlu.jobs.sagemaker.request import GRACE_FIELD, GRACE_SECONDS, render_request
from danlu.jobs.services import JobPreview, JobService, JobTarget, Probe
from danlu.jobs.types import JobBackend, Submission
from danlu.training.framework import PodTemplate
from danlu.training.pod_template import change_templates, pod_spec, replace_spec
from danlu.training.types import Job


class SageMakerService(JobService):
    """Training jobs of an account."""

    def open_backend(self, target: JobTarget, settings: Settings) -> JobBackend:
        """See :class:`~danlu.jobs.services.JobService`."""
        return SageMakerJobs(_find_account(target), target.context.region, where=target.name)

    def find_registry(self, target: JobTarget, settings: Settings) -> str:
        """See :class:`~danlu.jobs.services.JobService`."""
        return _find_account(target).find_registry(target.context.region)

    def complete_job(self, job: Job) -> Job:
        """See :class:`~danlu.jobs.services.JobService`."""
        return change_templates(job, _add_grace)

    def preview_job(self, submission: Submission, target: JobTarget) -> JobPreview:
        """See :class:`~danlu.jobs.services.JobService`."""
        rendered = render_request(submission, _find_account(target), target.context.region)
        return JobPreview(rendered.document, rendered.notes)

    def list_probes(self, target: JobTarget) -> Mapping[str, Probe]:
        """See :class:`~danlu.jobs.services.JobService`."""
        return list_account_probes(_find_account(target), target.context.region)


def _add_grace(template: PodTemplate) -> PodTemplate:
    """Return the template with the time that programs have after SIGTERM, if it has none."""
    return replace_spec(template, {GRACE_FIELD: GRACE_SECONDS, **pod_spec(template)})


def _find_account(target: JobTarget) -> SageMakerAccount:
    account = target.context.account
    if account is None:
        raise UsageError(f"context {target.name} has no account", hint="create it again")
    return account


SERVICE = SageMakerService()
