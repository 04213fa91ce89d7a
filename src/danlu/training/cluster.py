"""Names that the operator and the client of jobs on Kubernetes share, and nothing but names.

They never import each other; what one writes and the other reads is agreed here. Labels of pods
are Kubeflow's, and in :mod:`danlu.training.rendering`.
"""

from __future__ import annotations

from danlu.training.document import API_VERSION

__all__ = [
    "GROUP",
    "REPORTS",
    "STOPPED",
    "SUBMITTED_LABELS",
    "TIED",
    "VERSION",
    "code_name",
    "config_name",
    "lease_name",
    "reports_name",
]

GROUP, _, VERSION = API_VERSION.partition("/")
"""Of all kinds of jobs: ``kubeflow.org``, ``v1``."""

PREFIX = "danlu.dev"

REPORTS = f"{PREFIX}/reports"
"""Annotation of a job: ``progress``, or ``progress,values``, is to be taken from its replicas.

The operator then gives every replica the variables of the training-progress protocol, and keeps
what they say in the ConfigMap :func:`reports_name`.
"""

TIED = f"{PREFIX}/tied"
"""Annotation of a job: the name of a Lease in its namespace that must be renewed.

The operator stops the job when it has seen no renewal for the Lease's own duration, measured by
its own clock from the last change that it saw.
"""

STOPPED = f"{PREFIX}/stopped"
"""Annotation of a job that was suspended for good, and why: by its user, or with its submitter.

Whoever stops a job sets ``spec.runPolicy.suspend`` and this in one patch, so that Kubeflow's own
operator ends it as well.
"""

SUBMITTED_LABELS = f"{PREFIX}/labels"
"""Annotation of a job: its submission's labels as JSON (labels of Kubernetes are narrower)."""


def config_name(job: str) -> str:
    """The ConfigMap with the files of the framework (Kubeflow's name for MPI's)."""
    return f"{job}-config"


def code_name(job: str) -> str:
    """The ConfigMap with the code that was sent with the job."""
    return f"{job}-code"


def reports_name(job: str) -> str:
    """The ConfigMap with what the replicas reported: progress, values, what they raised."""
    return f"{job}-reports"


def lease_name(job: str) -> str:
    """The Lease that its submitter renews."""
    return f"{job}-tie"
