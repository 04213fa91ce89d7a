"""LightGBMJob: a kind of job for danlu that danlu does not know, in one file.

LightGBM's machines all have the list of all of them and connect to one another; each finds its own
place in the list by address and port, and has to listen on that port.
"""

from collections.abc import Iterator, Mapping

from danlu.training.framework import Finding, Framework, Tally, Variable, Verdict
from danlu.training.frameworks.pods import unless_given
from danlu.training.frameworks.replicas import at_least_one, leader, members, total, verdict
from danlu.training.types import Job, ReplicaId, ReplicaType, Topology

WORKER = ReplicaType("Worker")
TYPES = (WORKER,)
FIELD = "lightgbmReplicaSpecs"
CONTAINER = "lightgbm"


def environment(job: Job, replica: ReplicaId, topology: Topology) -> list[Variable]:
    """The variables of one replica: what ``train.py`` gives LightGBM as parameters."""
    machines = [f"{_host(topology, one)}:{topology.port(one)}" for one in members(job, WORKER)]
    ours: list[Variable] = [
        ("LIGHTGBM_MACHINES", ",".join(machines)),
        ("LIGHTGBM_NUM_MACHINES", str(total(job))),
        ("LIGHTGBM_LOCAL_LISTEN_PORT", str(topology.port(replica))),
        ("LIGHTGBM_RANK", str(replica.index)),
    ]
    # What the manifest sets itself stands.
    return unless_given(job, replica, CONTAINER, ours)


def _host(topology: Topology, replica: ReplicaId) -> str:
    """Of a machine's own addresses LightGBM knows those of interfaces: of 127.x only the first."""
    host = topology.host(replica)
    return "127.0.0.1" if host.startswith("127.") else host


def outcome(job: Job, tallies: Mapping[ReplicaType, Tally]) -> Verdict | None:
    """The job succeeds when all workers did, and fails when one failed for good."""
    return verdict(TYPES, tallies, driver=WORKER)


def check(job: Job) -> Iterator[Finding]:
    """What else is wrong with a manifest of this kind."""
    yield from at_least_one(job, WORKER, field=FIELD)
    learner = job.options.get("treeLearner", "data")
    if learner not in ("data", "feature", "voting"):
        yield Finding("spec.treeLearner", f"cannot be {learner!r}", "data, feature or voting")


def leading(job: Job) -> ReplicaId:
    """Whose log and result stand for the job's."""
    return leader(job, WORKER)


FRAMEWORK = Framework(
    name="lightgbm",
    kind="LightGBMJob",
    plural="lightgbmjobs",
    aliases=("lgbm",),
    replicas_field=FIELD,
    types=TYPES,
    required=(WORKER,),
    container=CONTAINER,
    port_name="lightgbmjob-port",
    port=12400,
    options=("treeLearner",),
    environment=environment,
    outcome=outcome,
    leader=leading,
    check=check,
)
