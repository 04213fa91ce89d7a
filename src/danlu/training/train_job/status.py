"""Read the status of a TrainJob, by danlu's operator or by Kubeflow Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from danlu.training.document import ManifestError
from danlu.training.manifest import read_status
from danlu.training.names import STATUS_FIELD
from danlu.training.types import ConditionType, JobStatus

#: By condition: the type that clients know, and its reason if danlu's own says nothing more
#: (Kubeflow Trainer's ``trainjob_types.go``, JobSet's ``pkg/constants``).
CONDITIONS = {
    ConditionType.SUCCEEDED: ("Complete", "AllJobsCompleted"),
    ConditionType.FAILED: ("Failed", "FailedJobs"),
    ConditionType.SUSPENDED: ("Suspended", "Suspended"),
}


def read_train_job_status(document: Mapping[str, Any]) -> JobStatus:
    """Return the status of danlu's operator, or else what Kubeflow Trainer's conditions say.

    Raises :class:`~danlu.training.document.ManifestError` if it is invalid.
    """
    if STATUS_FIELD in document:
        return read_status(document[STATUS_FIELD])
    types = {public: type for type, (public, _) in CONDITIONS.items()}
    given = document.get("conditions") or ()
    if not isinstance(given, list | tuple) or not all(isinstance(each, Mapping) for each in given):
        raise ManifestError("invalid status: conditions must be a list of mappings")
    conditions = [
        {**condition, "type": types[type]}
        for condition in given
        if (type := str(condition.get("type"))) in types
    ]
    return read_status({"conditions": conditions})
