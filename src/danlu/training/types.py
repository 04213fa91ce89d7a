"""Training jobs: what is asked for, what is seen of it, and what is decided.

A :class:`Job` is a Kubeflow manifest (``kubeflow.org/v1``) read, checked and with its defaults
filled in. A *replica* is one member of it (``worker-0``); on a cluster it is a pod, on this
machine a process or a container, and each time it is made anew is another *attempt*. All values
are frozen and all times are aware datetimes in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, NewType, Protocol

import msgspec

__all__ = [
    "MANAGER",
    "CleanPodPolicy",
    "Condition",
    "ConditionType",
    "CreateReplica",
    "Decision",
    "DeleteJob",
    "DeleteReplica",
    "ElasticPolicy",
    "Event",
    "FirstFailure",
    "Job",
    "JobStatus",
    "Observed",
    "ObservedReplica",
    "Pace",
    "Phase",
    "ReplicaId",
    "ReplicaRecord",
    "ReplicaSpec",
    "ReplicaStatus",
    "ReplicaType",
    "RestartPolicy",
    "RunPolicy",
    "SchedulingPolicy",
    "Topology",
]

ReplicaType = NewType("ReplicaType", str)
"""A replica type as Kubeflow writes it: ``Worker``, ``PS``, ``Master`` …"""

MANAGER = "kubeflow.org/training-operator"
"""The ``managedBy`` of jobs that are ours to run; empty means the same."""


class CleanPodPolicy(StrEnum):
    """What of a finished job's replicas is removed."""

    ALL = "All"
    RUNNING = "Running"
    NONE = "None"


class RestartPolicy(StrEnum):
    """What happens to a replica that ended.

    ``ExitCode``: 1 to 127 is permanent, 128 and more (a signal) is tried again.
    """

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


class Phase(StrEnum):
    """Where a replica stands (the phases of a pod)."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """What a job's conditions say, in Kubeflow's words."""

    CREATED = "Created"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUCCEEDED = "Succeeded"
    SUSPENDED = "Suspended"
    FAILED = "Failed"


class ReplicaId(msgspec.Struct, frozen=True, order=True):
    """One replica of a job: its type and its index, from 0."""

    type: ReplicaType
    index: int

    def __str__(self) -> str:
        return f"{self.type.lower()}-{self.index}"


# -- what is asked for ----------------------------------------------------------------------------


class SchedulingPolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How the replicas of a job are to be scheduled together (``runPolicy.schedulingPolicy``)."""

    min_available: int | None = None
    queue: str = ""
    min_resources: Mapping[str, Any] = {}
    priority_class: str = ""
    schedule_timeout_seconds: int | None = None


class RunPolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What holds for a job as a whole (``spec.runPolicy``); None where nothing is limited."""

    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.NONE
    ttl_seconds_after_finished: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    scheduling_policy: SchedulingPolicy | None = None
    suspend: bool = False
    managed_by: str = ""


class ElasticPolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How many workers a job may have (``spec.elasticPolicy``), and how they find one another.

    ``min_replicas`` and ``max_replicas`` are filled in by the defaults.
    """

    min_replicas: int | None = None
    max_replicas: int | None = None
    rdzv_backend: str = ""
    rdzv_port: int | None = None
    rdzv_host: str = ""
    rdzv_id: str = ""
    rdzv_conf: tuple[Mapping[str, str], ...] = ()
    standalone: bool = False
    n_proc_per_node: int | None = msgspec.field(default=None, name="nProcPerNode")
    max_restarts: int | None = None
    metrics: tuple[Mapping[str, Any], ...] = ()


class ReplicaSpec(msgspec.Struct, frozen=True):
    """All replicas of one type: how many, of what, and what happens when one ends.

    ``template`` is the PodTemplateSpec as the manifest gives it, with the framework's port filled
    in; nobody changes it in place.
    """

    replicas: int
    template: Mapping[str, Any]
    restart_policy: RestartPolicy


class Job(msgspec.Struct, frozen=True):
    """A training job, read and defaulted.

    ``kind`` is Kubeflow's (``PyTorchJob``). ``replicas`` is in the order in which the framework
    decides outcomes. ``options`` are the spec's further fields of this kind as they stand in the
    manifest (``nprocPerNode``, ``slotsPerWorker``, ``enableDynamicWorker``, ``jobMode`` …).
    ``uid`` tells a job from another of the same name, before or after it.
    """

    kind: str
    name: str
    replicas: Mapping[ReplicaType, ReplicaSpec]
    namespace: str = "default"
    uid: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    run_policy: RunPolicy = RunPolicy()
    success_policy: str = ""
    elastic_policy: ElasticPolicy | None = None
    options: Mapping[str, Any] = {}
    status: JobStatus = msgspec.field(default_factory=lambda: JobStatus())
    deleting: bool = False


# -- where it stands ------------------------------------------------------------------------------


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One condition of a job; the latest stands last in its list."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""
    last_update_time: datetime | None = None
    last_transition_time: datetime | None = None


class ReplicaStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How many replicas of one type are in which phase (Kubeflow's ``replicaStatuses``)."""

    active: int = 0
    succeeded: int = 0
    failed: int = 0
    selector: str = ""


class ReplicaRecord(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What must be known of a replica even when nothing is left of it: our own field.

    ``restarts`` counts every one, by whoever made it, over all attempts; ``attempts`` are those
    given up, which is the number of the one that stands or comes next. ``current`` is the uid of
    the attempt that stands for the replica, ``in_place`` how many restarts under that uid are
    counted already. ``last`` is the uid of the attempt given up before it, and ``past`` those
    given up that are still there: nothing of these counts again. ``completed`` says that the
    replica succeeded, and it is never made again; ``failed`` that it ended badly for good.
    ``exit_code`` and ``reason`` are of its last end. ``retry_at`` is when it may be made again at
    the earliest.
    """

    restarts: int = 0
    last: str = ""
    completed: bool = False
    failed: bool = False
    exit_code: int | None = None
    reason: str = ""
    retry_at: datetime | None = None
    current: str = ""
    in_place: int = 0
    attempts: int = 0
    past: tuple[str, ...] = ()


class FirstFailure(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The replica that failed before all others, and why: our own field."""

    replica: ReplicaId
    attempt: int = 0
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    time: datetime | None = None


class JobStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Where a job stands: Kubeflow's fields, then our own.

    ``records`` is by replica (``worker-0``). Forgetting everything but this and what runs loses
    nothing that decides.
    """

    conditions: tuple[Condition, ...] = ()
    replica_statuses: Mapping[ReplicaType, ReplicaStatus] = {}
    start_time: datetime | None = None
    completion_time: datetime | None = None
    last_reconcile_time: datetime | None = None
    records: Mapping[str, ReplicaRecord] = {}
    first_failure: FirstFailure | None = None

    def has(self, type: ConditionType) -> bool:
        """Whether a condition of this type is true."""
        return any(one.type == type and one.status == "True" for one in self.conditions)

    @property
    def finished(self) -> bool:
        """Whether the job succeeded or failed: nothing changes that any more."""
        return self.has(ConditionType.SUCCEEDED) or self.has(ConditionType.FAILED)

    def record(self, replica: ReplicaId) -> ReplicaRecord:
        """What is known of a replica; nothing yet is an empty record."""
        return self.records.get(str(replica), ReplicaRecord())


# -- what is seen ---------------------------------------------------------------------------------


class ObservedReplica(msgspec.Struct, frozen=True):
    """One attempt at a replica as a driver sees it.

    ``uid`` is the attempt's own. ``exit_code`` is that of the framework's container, 128+n for
    signal n, None while it runs or where nobody knows. ``reason`` is the driver's word for a bad
    end (``OOMKilled``, ``Evicted``, ``Error``). ``restarts`` are those made in place, under this
    uid, by the driver itself (a kubelet). ``deleting`` says that its end was ordered already.
    """

    id: ReplicaId
    phase: Phase
    uid: str
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    restarts: int = 0
    deleting: bool = False
    started: datetime | None = None
    finished: datetime | None = None


class Observed(msgspec.Struct, frozen=True):
    """All that a driver sees of a job's replicas, in any order.

    More than one attempt at a replica may be there for a moment; indexes beyond the job's numbers
    are those of a job that was made smaller.
    """

    replicas: tuple[ObservedReplica, ...] = ()


class Topology(Protocol):
    """Where replicas are reached; each driver has its own."""

    def host(self, replica: ReplicaId, *, qualified: bool = False) -> str:
        """A name or address that the job's other replicas reach it by.

        ``qualified`` asks for the name that holds outside the namespace too.
        """

    def port(self, replica: ReplicaId) -> int:
        """The number of its framework port (``pytorchjob-port`` …)."""

    def directory(self, replica: ReplicaId) -> str:
        """Where that replica finds the framework's files (:attr:`Framework.files`)."""


class Pace(msgspec.Struct, frozen=True):
    """How long (seconds) a replica waits before each further attempt: doubled up to a limit."""

    first: float = 1.0
    longest: float = 300.0


# -- what is decided ------------------------------------------------------------------------------


class CreateReplica(msgspec.Struct, frozen=True, tag_field="action", tag=True):
    """Make ``replica``; ``attempt`` counts from 0 and tells it from those before."""

    replica: ReplicaId
    attempt: int


class DeleteReplica(msgspec.Struct, frozen=True, tag_field="action", tag=True):
    """End and remove the attempt ``uid`` of ``replica``; its logs and its end are kept."""

    replica: ReplicaId
    uid: str
    why: str


class DeleteJob(msgspec.Struct, frozen=True, tag_field="action", tag=True):
    """Remove the job itself: its time to live after the end is over."""


class Event(msgspec.Struct, frozen=True, tag_field="action", tag=True):
    """Something to tell once, in Kubernetes' words."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


class Decision(msgspec.Struct, frozen=True):
    """What to do, how the job then stands, and when to look again (seconds; None: on a change).

    The status is written before the actions are carried out: then a decider that dies between the
    two decides the same again.
    """

    actions: tuple[CreateReplica | DeleteReplica | DeleteJob | Event, ...]
    status: JobStatus
    requeue_after: float | None = None
