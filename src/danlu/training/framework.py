"""The extension point for kinds of jobs: one :class:`Framework` per file.

danlu's own frameworks are in :mod:`danlu.training.frameworks`; other packages provide theirs
through the entry point group ``danlu.frameworks``. A framework does no I/O and does not know where
the job runs: on this machine or on Kubernetes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from danlu.training.types import (
    API_VERSION,
    MANAGER,
    ConditionType,
    Dependency,
    Job,
    ReplicaId,
    ReplicaType,
    RestartPolicy,
    Topology,
)


class FieldError(msgspec.Struct, frozen=True, order=True):
    """An invalid field of a manifest: its path (``spec.runPolicy.backoffLimit``) and the problem.

    ``hint`` is what to write instead, if known.
    """

    path: str
    message: str
    hint: str = ""


class FieldRef(msgspec.Struct, frozen=True):
    """A value that is known only where the replica runs.

    ``path`` is a field of the pod as in Kubernetes' downward API (``status.podIP``). On a cluster
    it becomes ``valueFrom.fieldRef``; the local driver fills in the value.
    """

    path: str


EnvVar = tuple[str, str | FieldRef]
"""Name and value; as in Kubernetes, a value may refer to earlier ones: ``$(POD_IP):80``."""

PodTemplate = Mapping[str, Any]
"""A PodTemplateSpec as in a manifest. Never changed in place."""


class GeneratedFile(msgspec.Struct, frozen=True):
    """A small text file that every replica finds in its ``topology.directory``."""

    text: str
    executable: bool = False
    agent: bool = False
    """Whether it runs a command in another replica: a driver with its own way replaces it."""


class PodLabels(msgspec.Struct, frozen=True):
    """The names of the labels with the job, the replica type and the index of a pod."""

    job: str = "training.kubeflow.org/job-name"
    type: str = "training.kubeflow.org/replica-type"
    index: str = "training.kubeflow.org/replica-index"


class AddedImage(msgspec.Struct, frozen=True):
    """An image that a framework adds to pods on a cluster, and the operator's flag to replace it.

    Containers with an ``optional`` one are only added if it is replaced.
    """

    image: str
    flag: str
    help: str
    optional: bool = False


class Messages(msgspec.Struct, frozen=True):
    """The messages of a job's conditions and events, as Kubeflow's operator words most of them.

    They are templates with ``{kind}``, ``{name}``, ``{namespace}``, the ``{type}`` that decides and
    the ``{count}`` of its replicas that failed, of ``{expected}``. If ``evicted`` is set, evictions
    are a reason by themselves, with the number ``{evicted}``.
    """

    running: str = "{kind} {name} is running."
    succeeded: str = "{kind} {name} is successfully completed."
    restarting: str = "{kind} {name} is restarting because {count} {type} replica(s) failed."
    failed: str = "{kind} {name} is failed because {count} {type} replica(s) failed."
    failed_by_exit_code: str = 'job "{name}" is failing because "{type}" replica(s) failed.'
    evicted: str = ""


QUALIFIED_MESSAGES = Messages(
    running="{kind} {namespace}/{name} is running.",
    succeeded="{kind} {namespace}/{name} successfully completed.",
)
"""Those of several kinds if a worker decides instead of a master."""


class ReplicaCounts(msgspec.Struct, frozen=True):
    """How many replicas of one type are in which state.

    Each of the ``expected`` replicas is counted at most once. ``failed`` ones failed permanently,
    ``evicted`` ones are those of them that were evicted; ``restarting`` ones failed and will be
    restarted, and ``retries`` is how often replicas were or now are. ``first_succeeded`` is about
    index 0.
    """

    expected: int = 0
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    evicted: int = 0
    restarting: int = 0
    retries: int = 0
    first_succeeded: bool = False


CountsByType = Mapping[ReplicaType, ReplicaCounts]


class Verdict(msgspec.Struct, frozen=True):
    """What the counts mean for the job; ``replica_type`` is the type that decided it."""

    condition: Literal[
        ConditionType.RUNNING,
        ConditionType.RESTARTING,
        ConditionType.SUCCEEDED,
        ConditionType.FAILED,
    ]
    replica_type: ReplicaType


class Framework(ABC):
    """One kind of job: its constants, and how its replicas work together.

    A subclass sets the attributes without a default and implements :meth:`build_env`; everything
    else has a default that fits a job led by the first of its ``driver_types``.
    """

    name: ClassVar[str]
    """The value of ``--framework``, such as ``pytorch``."""

    kind: ClassVar[str]
    """The Kubernetes kind, such as ``PyTorchJob``."""

    plural: ClassVar[str]
    """The Kubernetes resource name, such as ``pytorchjobs``."""

    api_version: ClassVar[str] = API_VERSION
    """The ``apiVersion`` of its manifests."""

    other_versions: ClassVar[tuple[Framework, ...]] = ()
    """The frameworks of the kind's other versions, which a cluster has instead of this one."""

    single_version: ClassVar[bool] = False
    """Whether a cluster's operator must not find jobs of another version under its CRD."""

    manager: ClassVar[str] = MANAGER
    """The ``managedBy`` of jobs that danlu runs."""

    aliases: ClassVar[tuple[str, ...]] = ()
    """Further names for ``--framework``, and further kinds that manifests may use."""

    pod_labels: ClassVar[PodLabels] = PodLabels()
    """The labels by which clients find the pods of a job."""

    replicas_field: ClassVar[str]
    """The key of the map of replica specs in ``spec``, such as ``pytorchReplicaSpecs``."""

    messages: ClassVar[Mapping[ReplicaType, Messages]] = {}
    """The messages about a job by the type that decides its outcome, if they differ."""

    spec_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Further fields that ``spec`` may have, with their OpenAPI schemas, ``{}`` for any value.

    Those of ``elasticPolicy``, ``successPolicy`` and ``cleanPodPolicy`` are known.
    """

    cluster_options: ClassVar[tuple[str, ...]] = ()
    """Those of them without an effect on this machine."""

    modules: ClassVar[tuple[str, ...]] = ()
    """Python modules: a script that imports one of them is run with this framework."""

    starts_processes: ClassVar[bool] = False
    """Whether that holds whatever else a script imports to compute with (``mpi4py``)."""

    replica_types: ClassVar[tuple[ReplicaType, ...]]
    """All replica types, in the order in which they decide the outcome."""

    driver_types: ClassVar[tuple[ReplicaType, ...]]
    """The types whose success is the job's: the first of these that a job has is its driver."""

    default_type: ClassVar[ReplicaType] = ReplicaType("Worker")
    """The type of a job without numbers of replicas, unless a required type computes."""

    scaled_type: ClassVar[ReplicaType | None] = None
    """The type whose number may change at any time: the scale subresource, an elastic policy."""

    required_types: ClassVar[tuple[ReplicaType, ...]] = ()
    """The types that every job must have."""

    singleton_types: ClassVar[tuple[ReplicaType, ...]] = ()
    """The types with exactly one replica, if the job has them."""

    idle_types: ClassVar[tuple[ReplicaType, ...]] = ()
    """The types that do not compute themselves: they get no GPU and no share of the cores."""

    server_types: ClassVar[tuple[ReplicaType, ...]] = ()
    """The types that run until they are stopped, so that a finished job does not wait for them."""

    default_replicas: ClassVar[Mapping[ReplicaType, int]] = {}
    """The number of replicas of a type whose spec gives none, if it is not 1."""

    restart_policy: ClassVar[RestartPolicy] = RestartPolicy.NEVER
    """The restart policy of replicas whose spec gives none."""

    restart_policies: ClassVar[tuple[RestartPolicy, ...]] = tuple(RestartPolicy)
    """The restart policies that replicas may have."""

    batch_types: ClassVar[tuple[ReplicaType, ...]] = ()
    """The types that Kubeflow runs as a Job of Kubernetes, if any.

    A failed replica of these is always restarted, whatever its policy (default ``OnFailure``), and
    as a new pod, so that the last one is kept with its log. Only their restarts count towards
    ``backoffLimit``, which is 6 if unset. None goes on running after the job.
    """

    container: ClassVar[str]
    """The name of the container that runs the program; empty for the first one."""

    any_container: ClassVar[bool] = False
    """Whether the container may have any name (then it is the first) and declares no port."""

    port_name: ClassVar[str]
    """The name of the port that replicas use for rendezvous."""

    port: ClassVar[int]
    """The number of that port if a replica's spec declares none."""

    single_port: ClassVar[bool] = False
    """Whether the program assumes the same port number on all replicas."""

    env_in_all_containers: ClassVar[bool] = True
    """Whether :meth:`build_env` applies to all containers of a pod, or only to ``container``."""

    services: ClassVar[bool] = True
    """Whether each replica gets a Service on a cluster."""

    keeps_expired_jobs: ClassVar[bool] = False
    """Whether only the pods of a job are deleted after its ``ttlSecondsAfterFinished``."""

    deadline_reason: ClassVar[str] = ""
    """The reason of a failure by the active deadline, if it is not that of other failures."""

    backoff_reason: ClassVar[str] = ""
    """The reason of a failure by the back-off limit, likewise."""

    node_types: ClassVar[tuple[ReplicaType, ...]] = ()
    """The types that can be nodes of a TrainJob, all of them alike, in the order of their ranks."""

    ml_policy: ClassVar[str] = ""
    """The policy of Kubeflow Trainer's runtimes by which nodes find one another, if it has one."""

    files_directory: ClassVar[str] = "/etc/danlu"
    """The directory of :meth:`files` in containers."""

    added_images: ClassVar[tuple[AddedImage, ...]] = ()
    """Images of containers that :meth:`mutate_pod` adds."""

    operator_rules: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """The PolicyRules (RBAC) that the operator needs for :meth:`files` and :meth:`extra_objects`.

    They include what roles among these objects grant.
    """

    cluster_rules: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Those for objects that are in no namespace."""

    thread_variables: ClassVar[tuple[str, ...]] = ()
    """Variables, besides OpenMP's, with the number of threads that the library starts."""

    uses_api_server: ClassVar[bool] = False
    """Whether replicas use the API server of their cluster."""

    data_directories: ClassVar[Mapping[ReplicaType, str]] = {}
    """The types that load data before the others start, if the job has them, and where to."""

    needs_own_tmpdir: ClassVar[bool] = False
    """Whether replicas that are processes of one machine must not share a temporary directory."""

    one_machine_variables: ClassVar[Mapping[str, str]] = {}
    """Variables of replicas that run on one machine, unless the job sets them."""

    # -- extension points -------------------------------------------------------------------------

    @abstractmethod
    def build_env(self, job: Job, replica: ReplicaId, topology: Topology) -> Sequence[EnvVar]:
        """Return the environment variables of one replica, in order."""

    def build_container_env(
        self, job: Job, replica: ReplicaId, topology: Topology
    ) -> Mapping[str, Sequence[EnvVar]]:
        """Return the variables of containers other than the main one, by the container's name.

        They override those of the template, and are also set in init containers.
        """
        return {}

    def change_suspension(self, *, suspended: bool) -> Mapping[str, Any]:
        """Return the change of ``spec`` that suspends or resumes a job."""
        return {"runPolicy": {"suspend": suspended}}

    @property
    def operator_name(self) -> str:
        """The value of the label ``operator-name``."""
        return f"{self.kind.lower()}-controller"

    def pod_name(self, job: Job, replica: ReplicaId) -> str:
        """Return the name of a replica's pod, and of its Service."""
        return f"{job.name}-{replica}"

    def files_config_map(self, job: Job) -> str:
        """Return the name of the ConfigMap with :meth:`files` (Kubeflow's name for MPI's)."""
        return f"{job.name}-config"

    def subdomain(self, job: Job) -> str:
        """Return the headless Service that the replicas share; empty if each has its own."""
        return ""

    def mark_pod(self, job: Job, replica: ReplicaId, template: PodTemplate) -> PodTemplate:
        """Return the pod with the labels and variables of controllers below Kubeflow's."""
        return template

    def computes(self, job: Job, type: ReplicaType) -> bool:
        """Return whether the replicas of a type compute themselves."""
        return type not in self.idle_types

    def driver_type(self, job: Job) -> ReplicaType:
        """Return the type whose success is the job's."""
        types = self.driver_types
        return next((type for type in types if type in job.replicas), types[-1])

    def evaluate(self, job: Job, counts: CountsByType) -> Verdict | None:
        """Return the outcome that the counts imply, None while it is open.

        By default the job succeeds when all replicas of its driver type have, and fails when any
        replica failed permanently.
        """
        return evaluate_counts(self.replica_types, counts, driver=self.driver_type(job))

    def leader(self, job: Job) -> ReplicaId:
        """Return the replica whose log and result represent the job (``job-role=master``)."""
        return first_replica(job, self.driver_types)

    def validate(self, job: Job) -> Iterable[FieldError]:
        """Return what is wrong with a job beyond the rules that all kinds share.

        By default the numbers of the singleton types and of the driver type are checked, and the
        bounds of an elastic policy.
        """
        for type in dict.fromkeys((*self.singleton_types, self.driver_type(job))):
            yield from self.check_number(job, type)
        if policy := job.elastic_policy:
            low, high = policy.min_replicas, policy.max_replicas
            if low is not None and high is not None and low > high:
                path = "spec.elasticPolicy.minReplicas"
                yield FieldError(path, f"{low} is more than maxReplicas, {high}")

    def check_number(self, job: Job, type: ReplicaType) -> Iterator[FieldError]:
        """Yield an error if the job has ``type`` without replicas, or several of a singleton."""
        number, path = job.replica_count(type), f"spec.{self.replicas_field}[{type}].replicas"
        if type in job.replicas and type in self.singleton_types and number != 1:
            hint = f"a job has one {type}; further replicas are {self.default_type}s"
            yield FieldError(path, "must be 1", hint)
        elif type in job.replicas and number < 1:
            yield FieldError(path, "must be at least 1")

    def list_claims(self, job: Job) -> Mapping[str, bool]:
        """Return the PersistentVolumeClaims that the job creates, and whether they outlive it."""
        return {}

    def files(
        self, job: Job, topology: Topology, running: Sequence[ReplicaId]
    ) -> Mapping[str, GeneratedFile]:
        """Return the files for ``topology.directory``, by name.

        They are written before the first replica starts, and again when the ``running`` replicas
        change.
        """
        return {}

    def wrap_command(self, job: Job, type: ReplicaType, command: Sequence[str]) -> Sequence[str]:
        """Return what a replica of ``type`` runs so that ``command`` runs once (``mpirun …``).

        An empty ``command`` asks for the command of a replica whose manifest has none; empty means
        the image's own.
        """
        return command

    def adapt_command(self, job: Job, type: ReplicaType, command: Sequence[str]) -> Sequence[str]:
        """Return what a replica of ``type`` runs on this machine; empty is the image's own."""
        return command or self.wrap_command(job, type, ())

    def list_dependencies(self, job: Job, type: ReplicaType) -> Sequence[Dependency]:
        """Return what replicas of ``type`` wait for before they are created."""
        return job.replicas[type].depends_on

    def count_processes(self, job: Job, type: ReplicaType) -> int:
        """Return how many computing processes a replica of ``type`` starts.

        0 if its launcher chooses the number, together with the threads of each.
        """
        return 1

    def mutate_pod(
        self, job: Job, replica: ReplicaId, topology: Topology, template: PodTemplate
    ) -> PodTemplate:
        """Return the pod of a replica with what it needs only on a cluster (init containers …)."""
        return template

    def extra_objects(self, job: Job, topology: Topology) -> Sequence[Mapping[str, Any]]:
        """Return manifests of further objects that the job owns on a cluster.

        They are created before the job's pods.
        """
        return ()


# -- building blocks ------------------------------------------------------------------------------

_NO_COUNTS = ReplicaCounts()


def evaluate_counts(
    types: Sequence[ReplicaType],
    counts: CountsByType,
    *,
    driver: ReplicaType,
    done: bool | None = None,
    tolerated: Container[ReplicaType] = (),
) -> Verdict | None:
    """Return the verdict on a job that is led by the type ``driver``.

    The job succeeds when ``done`` (default: all replicas of the driver succeeded), and fails when a
    replica failed permanently whose type is not ``tolerated``. The types are checked in order,
    success before failure, so that the same counts always give the same verdict; Kubeflow's
    operator iterates over a Go map here, or sets both conditions.
    """
    if done is None:
        leading = counts.get(driver, _NO_COUNTS)
        done = 0 < leading.expected <= leading.succeeded
    for type in types:
        if type == driver and done:
            return Verdict(ConditionType.SUCCEEDED, type)
        if counts.get(type, _NO_COUNTS).failed and type not in tolerated:
            return Verdict(ConditionType.FAILED, type)
    for type in types:
        if counts.get(type, _NO_COUNTS).restarting:
            return Verdict(ConditionType.RESTARTING, type)
    if counts.get(driver, _NO_COUNTS).active:
        return Verdict(ConditionType.RUNNING, driver)
    return None


def first_replica(job: Job, types: Iterable[ReplicaType]) -> ReplicaId:
    """Return replica 0 of the first of ``types`` with replicas, else of any type that has some."""
    types = (*types, *job.replicas)
    return ReplicaId(next((type for type in types if job.replica_count(type)), types[0]), 0)


def endpoint(topology: Topology, replica: ReplicaId, *, qualified: bool = False) -> str:
    """Return ``host:port`` of a replica."""
    return f"{topology.host(replica, qualified=qualified)}:{topology.port(replica)}"


def policy_rule(group: str, resources: Iterable[str], verbs: Iterable[str]) -> dict[str, Any]:
    """Return a ``PolicyRule`` of Kubernetes' RBAC."""
    return {"apiGroups": [group], "resources": sorted(resources), "verbs": sorted(verbs)}
