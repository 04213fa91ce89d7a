"""Jobs as the cache has them, read to what decides: checked, defaulted, with their status."""

from __future__ import annotations

from typing import Any

import msgspec

from danlu.operator.types import JobObject
from danlu.training.document import API_VERSION
from danlu.training.framework import Framework
from danlu.training.manifest import ManifestError, read_job, read_status
from danlu.training.types import MANAGER, Job, JobStatus

__all__ = ["JobReader", "job_manifest", "managed_elsewhere", "status_of"]


class JobReader:
    """Reads jobs of one kind; what a spec says is read once, however often the job is looked at.

    Checking and defaulting a manifest costs a hundred times what reading its status does, and a
    spec changes seldom.
    """

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._known: dict[str, tuple[bytes, Job]] = {}

    def __len__(self) -> int:
        """How many specs are remembered."""
        return len(self._known)

    def read(self, obj: JobObject) -> Job:
        """The job; raises :class:`ManifestError` with all that is wrong with its manifest."""
        metadata = obj.metadata
        return msgspec.structs.replace(
            self._spec(obj),
            labels=metadata.labels,
            annotations=metadata.annotations,
            status=status_of(obj),
            deleting=metadata.deletion_timestamp is not None,
        )

    def forget(self, uid: str) -> None:
        """The job is no more."""
        self._known.pop(uid, None)

    def _spec(self, obj: JobObject) -> Job:
        known = self._known.get(obj.metadata.uid)
        spec = bytes(obj.spec)
        if known is not None and known[0] == spec:
            return known[1]
        job = read_job(job_manifest(obj, self._framework), self._framework)
        self._known[obj.metadata.uid] = (spec, job)
        return job


def job_manifest(obj: JobObject, framework: Framework) -> dict[str, Any]:
    """The manifest of a job, without its status."""
    return {
        "apiVersion": API_VERSION,
        "kind": framework.kind,
        "metadata": msgspec.to_builtins(obj.metadata),
        "spec": msgspec.json.decode(obj.spec),
    }


def managed_elsewhere(obj: JobObject) -> bool:
    """Whether a job, valid or not, is another controller's."""
    spec = msgspec.json.decode(obj.spec)
    policy = spec.get("runPolicy") if isinstance(spec, dict) else None
    manager = policy.get("managedBy") if isinstance(policy, dict) else None
    return manager not in (None, "", MANAGER)


def status_of(obj: JobObject) -> JobStatus:
    """What the job's status says; raises :class:`ManifestError` where it is none."""
    found = msgspec.json.decode(obj.status)
    if not isinstance(found, dict | None):
        raise ManifestError("no status of a job: it has no fields")
    return read_status(found or {})
