"""A job on a stage: what a driver would do is done at once, and time moves when it is told to."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from danlu.training.decide import decide
from danlu.training.registry import framework_of
from danlu.training.types import (
    Condition,
    ConditionType,
    CreateReplica,
    Decision,
    DeleteJob,
    DeleteReplica,
    ElasticPolicy,
    Event,
    Job,
    JobStatus,
    Observed,
    ObservedReplica,
    Pace,
    Phase,
    ReplicaId,
    ReplicaRecord,
    ReplicaSpec,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PACE = Pace(first=1.0, longest=8.0)


def job(
    kind: str,
    policy: RestartPolicy = RestartPolicy.NEVER,
    *,
    policies: Mapping[str, RestartPolicy] | None = None,
    run: RunPolicy | None = None,
    elastic: ElasticPolicy | None = None,
    success: str = "",
    options: Mapping[str, Any] | None = None,
    **numbers: int,
) -> Job:
    """A job called ``n`` in ``ns`` with so many replicas of each type, all of one policy."""
    named = policies or {}
    replicas = {
        ReplicaType(type): ReplicaSpec(number, {}, named.get(type, policy))
        for type, number in numbers.items()
    }
    return Job(
        kind=kind,
        name="n",
        namespace="ns",
        replicas=replicas,
        run_policy=run or RunPolicy(),
        elastic_policy=elastic,
        success_policy=success,
        options=options or {},
    )


def replica(name: str, job: Job) -> ReplicaId:
    """``worker-0`` of a job."""
    type, index = name.rsplit("-", 1)
    known = {one.lower(): one for one in framework_of(job.kind).types}
    return ReplicaId(known.get(type, ReplicaType(type)), int(index))


class Stage:
    """One job, the attempts that are there, and a decider that remembers the status alone."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.framework = framework_of(job.kind)
        self.now = BEGIN
        self.there: dict[str, ObservedReplica] = {}
        self.born = 0
        self.removed = False
        self.events: list[Event] = []
        self.made: list[CreateReplica] = []
        self.deleted: list[DeleteReplica] = []

    @property
    def status(self) -> JobStatus:
        return self.job.status

    # -- what happens

    def attempt(self, name: str) -> ObservedReplica:
        """The only attempt at a replica."""
        (one,) = [one for one in self.there.values() if str(one.id) == name]
        return one

    def change(self, name: str, **changes: Any) -> None:
        one = self.attempt(name)
        self.there[one.uid] = replace(one, **changes)

    def run(self, *names: str) -> None:
        for name in names or [str(one.id) for one in self.there.values()]:
            self.change(name, phase=Phase.RUNNING, started=self.now)

    def end(self, name: str, code: int | None, **changes: Any) -> None:
        phase = Phase.SUCCEEDED if code == 0 else Phase.FAILED
        self.change(name, **{"phase": phase, "exit_code": code, "finished": self.now, **changes})

    def vanish(self, *names: str) -> None:
        for name in names or [str(one.id) for one in self.there.values()]:
            del self.there[self.attempt(name).uid]

    def add(self, name: str, phase: Phase = Phase.RUNNING, **changes: Any) -> str:
        """Another attempt, by somebody's hand."""
        self.born += 1
        uid = f"u{self.born}"
        id = replica(name, self.job)
        self.there[uid] = replace(ObservedReplica(id=id, phase=phase, uid=uid), **changes)
        return uid

    def ask(self, *, run: Mapping[str, Any] | None = None, **numbers: int) -> None:
        """Ask for another run policy or other numbers."""
        specs = dict(self.job.replicas)
        for type, number in numbers.items():
            specs[ReplicaType(type)] = replace(specs[ReplicaType(type)], replicas=number)
        policy = replace(self.job.run_policy, **(run or {}))
        self.job = replace(self.job, replicas=specs, run_policy=policy)

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # -- what is done about it

    def decide(self) -> Decision:
        """Decide only: the decision is written nowhere and nothing is done."""
        observed = Observed(tuple(self.there.values()))
        return decide(self.job, observed, self.framework, now=self.now, pace=PACE)

    def write(self) -> Decision:
        """Decide and write the status as JSON (nothing else is remembered), and die of it."""
        decision = self.decide()
        written = msgspec.json.decode(msgspec.json.encode(decision.status), type=JobStatus)
        self.job = replace(self.job, status=written)
        return decision

    def step(self) -> Decision:
        """Decide, write the status, and act."""
        decision = self.write()
        for action in decision.actions:
            self.do(action)
        return decision

    def do(self, action: CreateReplica | DeleteReplica | DeleteJob | Event) -> None:
        match action:
            case CreateReplica(id):
                self.made.append(action)
                self.born += 1
                uid = f"u{self.born}"
                self.there[uid] = ObservedReplica(id=id, phase=Phase.PENDING, uid=uid)
            case DeleteReplica():
                self.deleted.append(action)
                self.there.pop(action.uid, None)
            case DeleteJob():
                self.removed = True
            case Event():
                self.events.append(action)

    def settle(self) -> Decision:
        """Step until nothing is left to do."""
        for _ in range(10):
            before = self.status
            decision = self.step()
            if not decision.actions and decision.status == before:
                return decision
        raise AssertionError(f"no fixed point: {decision}")

    def start(self) -> Stage:
        """Make all replicas and have them run."""
        self.settle()
        self.run()
        self.settle()
        return self

    # -- what can be said of it

    def record(self, name: str) -> ReplicaRecord:
        return self.status.records[name]

    def names(self) -> list[str]:
        return sorted(str(one.id) for one in self.there.values())

    def condition(self, type: ConditionType) -> Condition:
        (one,) = [one for one in self.status.conditions if one.type == type]
        return one

    def state(self) -> str:
        """The word a table shows: the latest condition's."""
        return str(self.status.conditions[-1].type)

    def reasons(self) -> list[str]:
        return [one.reason for one in self.events]
