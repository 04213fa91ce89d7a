"""Training jobs: their spec and status, what drivers observe, and the decisions.

A :class:`Job` is a Kubeflow manifest (``kubeflow.org/v1``) that was parsed, validated and
defaulted. A *replica* is one member of it (``worker-0``): a pod on a cluster, a process or a
container on this machine. Each time it is started is an *attempt*. All values are frozen, and all
times are aware datetimes in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, NewType, Protocol

import msgspec

ReplicaType = NewType("ReplicaType", str)
"""A replica type as Kubeflow writes it: ``Worker``, ``PS``, ``Master`` …"""

API_VERSION = "kubeflow.org/v1"
"""The group and version of the training operator's kinds, and of almost all manifests."""

MANAGER = "kubeflow.org/training-operator"
"""The ``managedBy`` of these kinds; an empty value means the same."""


class CleanPodPolicy(StrEnum):
    """Which replicas of a finished job are deleted."""

    ALL = "All"
    RUNNING = "Running"
    NONE = "None"


class RestartPolicy(StrEnum):
    """When a replica is restarted.

    With ``ExitCode``, codes 1 to 127 are permanent failures; 128 or more (a signal) is retried.
    """

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


class ReplicaPhase(StrEnum):
    """The phase of a replica: those of a pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ConditionType(StrEnum):
    """The types of a job's conditions, as in Kubeflow."""

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


# -- spec -----------------------------------------------------------------------------------------


class SchedulingPolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How the replicas are scheduled as a gang (``runPolicy.schedulingPolicy``)."""

    min_available: int | None = None
    queue: str = ""
    min_resources: Mapping[str, Any] = {}
    priority_class: str = ""
    schedule_timeout_seconds: int | None = None


class RunPolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The policies of the job as a whole (``spec.runPolicy``); None means no limit."""

    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.NONE
    ttl_seconds_after_finished: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    scheduling_policy: SchedulingPolicy | None = None
    suspend: bool = False
    managed_by: str = ""


RDZV_BACKENDS = ("c10d", "etcd", "etcd-v2")


class ElasticPolicy(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How many workers a job may have and how they rendezvous (``spec.elasticPolicy``).

    Defaulting sets both ``min_replicas`` and ``max_replicas``.
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


class JobRestartPolicy(msgspec.Struct, frozen=True):
    """All replicas are recreated together if one fails, at most ``max_restarts`` times.

    None is no limit. This is JobSet's ``failurePolicy``; of a manifest it is the annotation
    :data:`~danlu.training.names.RESTART_POLICY_ANNOTATION` with ``runPolicy.backoffLimit``.
    """

    max_restarts: int | None = None


class Dependency(msgspec.Struct, frozen=True):
    """What replicas wait for: ``Ready`` if all of ``type`` run, ``Complete`` if all succeeded.

    These are JobSet's words (``dependsOn``). One that has succeeded counts as running, too.
    """

    type: ReplicaType
    status: Literal["Ready", "Complete"]


class ReplicaSpec(msgspec.Struct, frozen=True):
    """The spec of all replicas of one type.

    ``template`` is the manifest's PodTemplateSpec with the framework's port added. It is never
    changed in place. The replicas are created once all of ``depends_on`` are met; a manifest of
    ``kubeflow.org/v1`` has no field for that.
    """

    replicas: int
    template: Mapping[str, Any]
    restart_policy: RestartPolicy
    depends_on: tuple[Dependency, ...] = ()


class Job(msgspec.Struct, frozen=True):
    """A training job, parsed and defaulted.

    ``kind`` is Kubeflow's (``PyTorchJob``), in the version ``api_version``. ``replicas`` is in the
    order in which the framework evaluates types. ``options`` are the fields of ``spec`` that only
    this kind has, as in the manifest (``nprocPerNode``, ``slotsPerWorker``,
    ``enableDynamicWorker``, ``jobMode`` …). ``uid`` distinguishes jobs of the same name. Without
    ``job_restart_policy`` a replica that failed is recreated alone.
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
    job_restart_policy: JobRestartPolicy | None = None
    options: Mapping[str, Any] = {}
    status: JobStatus = msgspec.field(default_factory=lambda: JobStatus())
    deleting: bool = False
    api_version: str = API_VERSION

    @property
    def total_replicas(self) -> int:
        """The number of replicas of all types."""
        return sum(spec.replicas for spec in self.replicas.values())

    def replica_count(self, type: ReplicaType) -> int:
        """Return the number of replicas of a type, 0 if the job has no such type."""
        spec = self.replicas.get(type)
        return spec.replicas if spec else 0

    def is_stage(self, type: ReplicaType) -> bool:
        """Return whether replicas of another type wait for the success of this one."""
        wanted = Dependency(type, "Complete")
        return any(wanted in spec.depends_on for spec in self.replicas.values())

    def replica_ids(self, type: ReplicaType) -> tuple[ReplicaId, ...]:
        """Return the replicas of a type, by index."""
        return tuple(ReplicaId(type, index) for index in range(self.replica_count(type)))


# -- status ---------------------------------------------------------------------------------------


class JobCondition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One condition of a job; the newest is the last of its list."""

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
    """The history of a replica, which outlives its pods. Not a field of Kubeflow's.

    Attributes:
        restarts: All restarts so far, by any controller, over all attempts; not those of the job.
        attempts: How many attempts were released; the number of the current or next attempt.
        current: The uid of the attempt that represents the replica.
        in_place: How many restarts under that uid are already counted.
        last: The uid of the attempt released before it.
        past: The uids of released attempts that still exist, and are ignored.
        completed: Whether the replica succeeded; it is never restarted then.
        failed: Whether it failed permanently.
        exit_code, reason: How its latest attempt ended.
        retry_at: The earliest time of its next attempt.
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
    """The replica that failed before all others, and why. Not a field of Kubeflow's."""

    replica: ReplicaId
    attempt: int = 0
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    time: datetime | None = None


class FinishPhase(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A job that has succeeded while other replicas still finish. Not a field of Kubeflow's.

    It succeeded at ``since``, through replicas of ``type``. ``notes`` are sentences without a full
    stop about replicas that failed meanwhile or did not finish.
    """

    since: datetime
    type: ReplicaType
    notes: tuple[str, ...] = ()


class JobStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The status of a job: Kubeflow's fields, then our own.

    ``records`` is by replica (``worker-0``), ``restarts`` is how often the whole job was restarted.
    Together with what is observed, the status is all that decisions depend on.
    """

    conditions: tuple[JobCondition, ...] = ()
    replica_statuses: Mapping[ReplicaType, ReplicaStatus] = {}
    start_time: datetime | None = None
    completion_time: datetime | None = None
    last_reconcile_time: datetime | None = None
    records: Mapping[str, ReplicaRecord] = {}
    first_failure: FirstFailure | None = None
    finishing: FinishPhase | None = None
    restarts: int = 0

    def has_condition(self, type: ConditionType) -> bool:
        """Return whether a condition of this type is true."""
        return any(
            condition.type == type and condition.status == "True" for condition in self.conditions
        )

    @property
    def finished(self) -> bool:
        """Whether the job succeeded or failed; that never changes."""
        return self.has_condition(ConditionType.SUCCEEDED) or self.has_condition(
            ConditionType.FAILED
        )

    @property
    def is_finishing(self) -> bool:
        """Whether the job has succeeded but other replicas still get time to finish."""
        return self.finishing is not None and not self.finished

    def record(self, replica: ReplicaId) -> ReplicaRecord:
        """Return the record of a replica, empty for a new one."""
        return self.records.get(str(replica), ReplicaRecord())

    def restart_count(self, replica: ReplicaId) -> int:
        """Return how often a replica was restarted, alone or with the whole job."""
        return self.restarts + self.record(replica).restarts


# -- observations ---------------------------------------------------------------------------------


class ObservedReplica(msgspec.Struct, frozen=True):
    """One attempt at a replica, as a driver observes it.

    Attributes:
        uid: Identifies the attempt.
        exit_code: Of the framework's container; 128+n for signal n. None if it runs or is unknown.
        reason: The driver's reason for a failure (``OOMKilled``, ``Evicted``, ``Error``).
        restarts: Restarts in place, under this uid, by the driver itself (a kubelet).
        deleting: Whether it is already being deleted.
        active: When it last made progress (output, CPU use); None if the driver cannot see that.
    """

    id: ReplicaId
    phase: ReplicaPhase
    uid: str
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    restarts: int = 0
    deleting: bool = False
    started: datetime | None = None
    finished: datetime | None = None
    active: datetime | None = None


class ObservedReplicas(msgspec.Struct, frozen=True):
    """Everything a driver observes of a job's replicas, in any order.

    A replica can briefly have several attempts. After scaling down, indexes beyond the job's
    replica counts can remain.
    """

    replicas: tuple[ObservedReplica, ...] = ()


class Topology(Protocol):
    """Where replicas are reachable; each driver has its own."""

    @property
    def on_cluster(self) -> bool:
        """Whether replicas are pods of a cluster, whose names resolve."""

    def host(self, replica: ReplicaId, *, qualified: bool = False) -> str:
        """Return a name or address at which the job's other replicas reach it.

        A ``qualified`` name is valid outside the namespace too.
        """

    def port(self, replica: ReplicaId) -> int:
        """Return the number of its framework port (``pytorchjob-port`` …)."""

    def directory(self, replica: ReplicaId) -> str:
        """Return where that replica finds the framework's files (``Framework.files``)."""


class RestartBackoff(msgspec.Struct, frozen=True):
    """The delay in seconds before each further attempt: doubled each time, up to a limit."""

    first_delay: float = 1.0
    max_delay: float = 300.0


class FinishPolicy(msgspec.Struct, frozen=True):
    """How long, in seconds, other replicas may keep running after their job succeeded.

    ``timeout`` None is Kubeflow's rule: the job ends at once. ``idle`` is how long they may
    all be without progress. ``stops_all`` is set if the driver stops all replicas of a finished
    job, whatever its clean pod policy.
    """

    timeout: float | None = None
    idle: float = 30.0
    stops_all: bool = False


# -- decisions ------------------------------------------------------------------------------------


class CreateReplica(msgspec.Struct, frozen=True, tag_field="action", tag=True):
    """Create ``replica``. ``attempt`` counts from 0."""

    replica: ReplicaId
    attempt: int


class DeleteReplica(msgspec.Struct, frozen=True, tag_field="action", tag=True):
    """Stop and delete the attempt ``uid`` of ``replica``; its logs and exit status are kept."""

    replica: ReplicaId
    uid: str
    why: str


class DeleteJob(msgspec.Struct, frozen=True, tag_field="action", tag=True):
    """Delete the job itself, because its ``ttlSecondsAfterFinished`` has passed."""


class Event(msgspec.Struct, frozen=True, tag_field="action", tag=True, omit_defaults=True):
    """An event to record once, as in Kubernetes. ``exit_code`` is set if a replica ended."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    exit_code: int | None = None


class Decision(msgspec.Struct, frozen=True):
    """Actions, the new status, and when to decide again (in seconds; None: after a change).

    The status must be written before the actions are executed: after a crash between the two the
    same decision is made again.
    """

    actions: tuple[CreateReplica | DeleteReplica | DeleteJob | Event, ...]
    status: JobStatus
    requeue_after: float | None = None
