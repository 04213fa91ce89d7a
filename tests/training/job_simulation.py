"""A simulated driver for one job: it applies decisions at once and has a manual clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from danlu.training.decide import decide
from danlu.training.registry import find_framework
from danlu.training.types import (
    ConditionType,
    CreateReplica,
    Decision,
    DeleteJob,
    DeleteReplica,
    Dependency,
    ElasticPolicy,
    Event,
    FinishPolicy,
    Job,
    JobCondition,
    JobRestartPolicy,
    JobStatus,
    ObservedReplica,
    ObservedReplicas,
    ReplicaId,
    ReplicaPhase,
    ReplicaRecord,
    ReplicaSpec,
    ReplicaType,
    RestartBackoff,
    RestartPolicy,
    RunPolicy,
)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
PACE = RestartBackoff(first_delay=1.0, max_delay=8.0)


def job(
    kind: str,
    policy: RestartPolicy = RestartPolicy.NEVER,
    *,
    policies: Mapping[str, RestartPolicy] | None = None,
    run: RunPolicy | None = None,
    elastic: ElasticPolicy | None = None,
    success: str = "",
    options: Mapping[str, Any] | None = None,
    together: JobRestartPolicy | None = None,
    depends_on: Mapping[str, Sequence[Dependency]] | None = None,
    **numbers: int,
) -> Job:
    """Return a job ``n`` in namespace ``ns`` with these replica counts by type."""
    named, waits = policies or {}, depends_on or {}
    replicas = {
        ReplicaType(type): ReplicaSpec(
            number, {}, named.get(type, policy), tuple(waits.get(type, ()))
        )
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
        job_restart_policy=together,
        options=options or {},
    )


def replica(name: str, job: Job) -> ReplicaId:
    """Return the replica id for a name such as ``worker-0``."""
    type, index = name.rsplit("-", 1)
    known = {
        replica_type.lower(): replica_type
        for replica_type in find_framework(job.kind).replica_types
    }
    return ReplicaId(known.get(type, ReplicaType(type)), int(index))


class JobSimulation:
    """One job and its existing attempts; between decisions only the status is kept."""

    def __init__(self, job: Job, finish: FinishPolicy | None = None) -> None:
        self.job = job
        self.finish = finish or FinishPolicy()
        self.framework = find_framework(job.kind)
        self.now = BEGIN
        self.attempts: dict[str, ObservedReplica] = {}
        self.attempt_count = 0
        self.removed = False
        self.events: list[Event] = []
        self.created: list[CreateReplica] = []
        self.deleted: list[DeleteReplica] = []

    @property
    def status(self) -> JobStatus:
        return self.job.status

    # -- events from outside

    def attempt(self, name: str) -> ObservedReplica:
        """Return the only attempt of a replica."""
        (result,) = [attempt for attempt in self.attempts.values() if str(attempt.id) == name]
        return result

    def change(self, name: str, **changes: Any) -> None:
        attempt = self.attempt(name)
        self.attempts[attempt.uid] = replace(attempt, **changes)

    def run(self, *names: str) -> None:
        for name in names or [str(attempt.id) for attempt in self.attempts.values()]:
            self.change(name, phase=ReplicaPhase.RUNNING, started=self.now)

    def end(self, name: str, code: int | None, **changes: Any) -> None:
        phase = ReplicaPhase.SUCCEEDED if code == 0 else ReplicaPhase.FAILED
        self.change(name, **{"phase": phase, "exit_code": code, "finished": self.now, **changes})

    def vanish(self, *names: str) -> None:
        for name in names or [str(attempt.id) for attempt in self.attempts.values()]:
            del self.attempts[self.attempt(name).uid]

    def add(self, name: str, phase: ReplicaPhase = ReplicaPhase.RUNNING, **changes: Any) -> str:
        """Add an attempt that the driver did not create; return its uid."""
        self.attempt_count += 1
        uid = f"u{self.attempt_count}"
        id = replica(name, self.job)
        self.attempts[uid] = replace(ObservedReplica(id=id, phase=phase, uid=uid), **changes)
        return uid

    def change_spec(self, *, run: Mapping[str, Any] | None = None, **numbers: int) -> None:
        """Change the run policy or the replica counts of the job."""
        specs = dict(self.job.replicas)
        for type, number in numbers.items():
            specs[ReplicaType(type)] = replace(specs[ReplicaType(type)], replicas=number)
        policy = replace(self.job.run_policy, **(run or {}))
        self.job = replace(self.job, replicas=specs, run_policy=policy)

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # -- decisions and actions

    def decide(self) -> Decision:
        """Decide without writing the status or applying an action."""
        observed = ObservedReplicas(tuple(self.attempts.values()))
        return decide(
            self.job, observed, self.framework, now=self.now, backoff=PACE, finish=self.finish
        )

    def write(self) -> Decision:
        """Decide and write the status as JSON, without applying the actions."""
        decision = self.decide()
        document = msgspec.json.decode(msgspec.json.encode(decision.status), type=JobStatus)
        self.job = replace(self.job, status=document)
        return decision

    def step(self) -> Decision:
        """Decide, write the status, and apply the actions."""
        decision = self.write()
        for action in decision.actions:
            self.apply_action(action)
        return decision

    def apply_action(self, action: CreateReplica | DeleteReplica | DeleteJob | Event) -> None:
        match action:
            case CreateReplica(id):
                self.created.append(action)
                self.attempt_count += 1
                uid = f"u{self.attempt_count}"
                self.attempts[uid] = ObservedReplica(id=id, phase=ReplicaPhase.PENDING, uid=uid)
            case DeleteReplica():
                self.deleted.append(action)
                self.attempts.pop(action.uid, None)
            case DeleteJob():
                self.removed = True
            case Event():
                self.events.append(action)

    def settle(self) -> Decision:
        """Step until neither actions nor status change."""
        for _ in range(10):
            before = self.status
            decision = self.step()
            if not decision.actions and decision.status == before:
                return decision
        raise AssertionError(f"no fixed point: {decision}")

    def start(self) -> JobSimulation:
        """Create all replicas and start them."""
        self.settle()
        self.run()
        self.settle()
        return self

    # -- queries

    def record(self, name: str) -> ReplicaRecord:
        return self.status.records[name]

    def names(self) -> list[str]:
        return sorted(str(attempt.id) for attempt in self.attempts.values())

    def condition(self, type: ConditionType) -> JobCondition:
        (result,) = [condition for condition in self.status.conditions if condition.type == type]
        return result

    def state(self) -> str:
        """Return the type of the latest condition, as tables show it."""
        return str(self.status.conditions[-1].type)

    def reasons(self) -> list[str]:
        return [event.reason for event in self.events]
