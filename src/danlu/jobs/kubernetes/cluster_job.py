"""A job of a cluster, whatever its kind: its object, and what else is needed to read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from danlu.jobs.kubernetes.objects import JobObject, PodObject
from danlu.kube.watch import ListOptions
from danlu.training.document import ManifestError
from danlu.training.framework import Framework
from danlu.training.manifest import read_job, read_status
from danlu.training.registry import TRAIN_JOB
from danlu.training.rendering import parse_replica_id
from danlu.training.train_job.reader import outline_train_job, read_train_job
from danlu.training.train_job.status import read_train_job_status
from danlu.training.types import Job, JobStatus, ReplicaId


class ClusterJob(msgspec.Struct, frozen=True):
    """A job and the framework of its kind.

    Attributes:
        runtimes: The runtime of a TrainJob; empty if it does not exist or the user may not read it.
        is_ambiguous: Whether a job of another kind has the same name.
    """

    job: JobObject
    framework: Framework
    runtimes: tuple[Mapping[str, Any], ...] = ()
    is_ambiguous: bool = False

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.job.metadata.name

    @property
    def unique_name(self) -> str:
        """Name of the job, after its kind if another kind has a job of this name."""
        return f"{self.framework.kind.lower()}/{self.name}" if self.is_ambiguous else self.name

    @property
    def uid(self) -> str:
        """UID of the job."""
        return self.job.metadata.uid

    @property
    def status(self) -> JobStatus:
        """The status; empty if it is invalid."""
        read = read_train_job_status if self.framework is TRAIN_JOB else read_status
        try:
            return read(self.job.status)
        except ManifestError:
            return JobStatus()

    @property
    def pod_selection(self) -> ListOptions:
        """What selects its pods, and maybe those of other jobs of its name."""
        selector = f"{self.framework.pod_labels.job}={self.name}"
        return ListOptions(self.job.metadata.namespace, labels=selector)

    def has_labels(self, labels: Mapping[str, str]) -> bool:
        """Return whether it was submitted with these labels."""
        return labels.items() <= self.job.submitted_labels.items()

    def decode(self, pods: Iterable[ReplicaId] = ()) -> Job:
        """Return the job that the object describes; without replicas if its manifest is invalid.

        If the runtime of a TrainJob cannot be read, its replicas are those that have ``pods``, or
        else the nodes that it sets itself.
        """
        metadata: Mapping[str, Any] = msgspec.to_builtins(self.job.metadata)
        version, kind = self.framework.api_version, self.framework.kind
        document = {"apiVersion": version, "kind": kind, "metadata": metadata}
        document["spec"] = self.job.spec
        try:
            if self.framework is TRAIN_JOB:
                job = read_train_job(document, self.runtimes)
            else:
                job = read_job(document, self.framework)
        except ManifestError:
            if self.framework is TRAIN_JOB:
                job = outline_train_job(document, Counter(pod.type for pod in pods))
            else:
                meta = self.job.metadata
                job = Job(kind, meta.name, {}, meta.namespace, meta.uid)
        return msgspec.structs.replace(job, status=self.status)

    def select_pods(self, pods: Iterable[PodObject]) -> list[PodObject]:
        """Return those of some pods that belong to the job, oldest first."""
        owned = [pod for pod in pods if self._owns_pod(pod)]
        return sorted(owned, key=lambda pod: str(pod.metadata.creation_timestamp))

    def _owns_pod(self, pod: PodObject) -> bool:
        owner = pod.metadata.controller
        if owner is None or owner.uid == self.uid:
            return owner is not None
        # Kubeflow Trainer's pods belong to a Job of a JobSet of the TrainJob, and so did those that
        # an earlier TrainJob of this name has left.
        created, began = pod.metadata.creation_timestamp, self.job.metadata.creation_timestamp
        return (
            self.framework is TRAIN_JOB
            and owner.kind == "Job"
            and pod.metadata.labels.get(self.framework.pod_labels.job) == self.name
            and not (created and began and created < began)
        )

    def newest_pods(self, pods: Iterable[PodObject]) -> dict[ReplicaId, PodObject]:
        """Return the newest pod of each replica; ``pods`` are ordered from oldest to newest."""
        found = ((parse_replica_id(pod.metadata.labels, self.framework), pod) for pod in pods)
        return {replica: pod for replica, pod in found if replica is not None}
