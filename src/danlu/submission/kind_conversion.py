"""Write a planned job as a TrainJob with its runtime, or as a kind of ``kubeflow.org/v1``."""

from __future__ import annotations

import msgspec

from danlu.errors import UsageError
from danlu.submission.plan import PlannedJob
from danlu.training.document import describe_findings
from danlu.training.registry import TRAIN_JOB, find_job_framework
from danlu.training.train_job.conversion import convert_to_train_job, convert_to_v1
from danlu.training.types import API_VERSION

TRAINJOB, V1 = KINDS = ("trainjob", "v1")


def convert_planned_job(planned: PlannedJob, kind: str) -> tuple[PlannedJob, tuple[str, ...]]:
    """Return the job as one of :data:`KINDS`, and a line for each property that is lost.

    A job of this kind is not changed. Raises :class:`~danlu.errors.UsageError` if the
    result would be another job.
    """
    job, framework = planned.job, find_job_framework(planned.job)
    if (framework.kind == TRAIN_JOB.kind) == (kind == TRAINJOB):
        if framework.kind != TRAIN_JOB.kind and job.api_version != API_VERSION:
            raise UsageError(f"the {job.kind} {job.api_version} cannot be written as {API_VERSION}")
        return planned, ()
    if planned.manifests:
        raise UsageError(
            "a TrainJob for a cluster is not converted, because its runtime may be there",
            hint="use `danlu convert JOB.yaml RUNTIME.yaml --as v1`, and submit what it prints",
        )
    if kind == TRAINJOB:
        conversion = convert_to_train_job(
            job, framework, planned.document, start_with_launcher=not planned.document
        )
    else:
        conversion = convert_to_v1(job, planned.document)
    lost = describe_findings(planned.document, conversion.lost)
    return msgspec.structs.replace(planned, job=conversion.job), lost
