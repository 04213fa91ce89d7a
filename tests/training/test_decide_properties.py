"""Invariants of every decision about a job, under any sequence of events.

The driver is unreliable: it applies some actions in any order and drops the rest, and deletions
may be slow. Between decisions only the status is kept, as JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from danlu.training.decide import decide
from danlu.training.replicas import desired_replicas
from danlu.training.types import (
    CleanPodPolicy,
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
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)
from tests.training.job_simulation import PACE, JobSimulation, job

KINDS = {
    "PyTorchJob": ("Master", "Worker"),
    "TFJob": ("Chief", "PS", "Worker"),
    "MPIJob": ("Launcher", "Worker"),
    "JAXJob": ("Worker",),
}
ONE = ("Master", "Chief", "Launcher")
ENDED = (ReplicaPhase.SUCCEEDED, ReplicaPhase.FAILED)
FINAL = (ConditionType.SUCCEEDED, ConditionType.FAILED)

policies = st.sampled_from(RestartPolicy)
finishes = st.sampled_from(
    [FinishPolicy(), FinishPolicy(timeout=4.0), FinishPolicy(8.0, idle=3.0, stops_all=True)]
)
codes = st.sampled_from([0, 1, 127, 128, 137, 143, None])


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    kind = draw(st.sampled_from(sorted(KINDS)))
    led = draw(st.booleans()) or kind == "MPIJob"
    types = [type for type in KINDS[kind] if led or type not in ONE]
    numbers: dict[str, Any] = {
        type: 1 if type in ONE else draw(st.integers(1, 3)) for type in types
    }
    first, *others = types if draw(st.booleans()) else types[::-1]
    status: Any = draw(st.sampled_from(["Ready", "Complete"]))
    waits = draw(st.booleans())
    return job(
        kind,
        policies={type: draw(policies) for type in types},
        together=draw(st.none() | st.builds(JobRestartPolicy, st.none() | st.integers(0, 3))),
        depends_on={type: [Dependency(ReplicaType(first), status)] for type in others if waits},
        run=RunPolicy(
            clean_pod_policy=draw(st.sampled_from(CleanPodPolicy)),
            backoff_limit=draw(st.none() | st.integers(0, 3)),
            active_deadline_seconds=draw(st.none() | st.integers(1, 30)),
            ttl_seconds_after_finished=draw(st.none() | st.integers(0, 10)),
            suspend=draw(st.booleans()),
        ),
        elastic=draw(st.none() | st.just(ElasticPolicy(min_replicas=1, max_replicas=2))),
        **numbers,
    )


def count_actions(decision: Decision) -> Counter[object]:
    """Count the actions of a decision, without events."""
    return Counter(action for action in decision.actions if not isinstance(action, Event))


def restarts(status: JobStatus) -> int:
    return status.restarts + sum(record.restarts for record in status.records.values())


class JobMachine(RuleBasedStateMachine):
    """A job under arbitrary events."""

    @initialize(job=jobs(), finish=finishes)
    def begin(self, job: Job, finish: FinishPolicy) -> None:
        self.stage = JobSimulation(job, finish)
        self.ended: set[str] = set()  # attempts that may count as one restart each
        self.in_place = 0
        self.numbers: dict[str, tuple[ReplicaId, int]] = {}  # of attempts by uid, as created
        self.known: set[str] = set()  # attempts that the decider has seen
        self.final: tuple[JobCondition, ...] = ()
        self.scaled_or_suspended = job.run_policy.suspend  # if ever: attempts are then not restarts

    # -- events, each followed by a reaction

    def some(self, data: st.DataObject, *phases: ReplicaPhase) -> ObservedReplica | None:
        existing = self.stage.attempts.values()
        results = [attempt for attempt in existing if attempt.phase in phases]
        return data.draw(st.sampled_from(results)) if results else None

    def set(self, attempt: ObservedReplica, **changes: object) -> None:
        self.stage.attempts[attempt.uid] = replace(attempt, **changes)

    @rule(data=st.data(), all=st.booleans())
    def start_attempts(self, data: st.DataObject, all: bool) -> None:
        pending = [
            attempt
            for attempt in self.stage.attempts.values()
            if attempt.phase is ReplicaPhase.PENDING
        ]
        for attempt in pending if all else pending[:1]:
            self.set(attempt, phase=ReplicaPhase.RUNNING, started=self.stage.now)
        self.decide_and_apply(data)

    @rule(data=st.data(), code=codes)
    def end_attempt(self, data: st.DataObject, code: int | None) -> None:
        if attempt := self.some(data, ReplicaPhase.PENDING, ReplicaPhase.RUNNING):
            phase = ReplicaPhase.SUCCEEDED if code == 0 else ReplicaPhase.FAILED
            self.set(attempt, phase=phase, exit_code=code, finished=self.stage.now)
            self.ended.add(attempt.uid)
        self.decide_and_apply(data)

    @rule(data=st.data(), times=st.integers(1, 2))
    def restart_in_place(self, data: st.DataObject, times: int) -> None:
        if attempt := self.some(data, ReplicaPhase.RUNNING):
            self.set(attempt, restarts=attempt.restarts + times)
            self.in_place += times
        self.decide_and_apply(data)

    @rule(data=st.data(), at_once=st.booleans())
    def is_ended_by_others(self, data: st.DataObject, at_once: bool) -> None:
        if attempt := self.some(data, *ReplicaPhase):
            self.ended.add(attempt.uid)
            if at_once or attempt.deleting:
                del self.stage.attempts[attempt.uid]
            else:
                self.set(attempt, deleting=True)
        self.decide_and_apply(data)

    @rule(data=st.data(), phase=st.sampled_from(ReplicaPhase), index=st.integers(-1, 3))
    def add_attempt(self, data: st.DataObject, phase: ReplicaPhase, index: int) -> None:
        type = data.draw(st.sampled_from([*self.stage.job.replicas, ReplicaType("Stranger")]))
        uid = self.stage.add("x-0", phase)
        self.set(self.stage.attempts[uid], id=ReplicaId(type, index))
        self.ended.add(uid)
        self.decide_and_apply(data)

    @rule(data=st.data())
    def make_progress(self, data: st.DataObject) -> None:
        attempt = self.some(data, ReplicaPhase.RUNNING)
        if attempt is not None:
            self.set(attempt, active=self.stage.now)
        self.decide_and_apply(data)

    @rule(data=st.data(), number=st.integers(1, 4))
    def scale_job(self, data: st.DataObject, number: int) -> None:
        type = data.draw(st.sampled_from(sorted(self.stage.job.replicas)))
        if type not in ONE:
            numbers: dict[str, Any] = {type: number}
            self.stage.change_spec(**numbers)
            self.scaled_or_suspended = True
        self.decide_and_apply(data)

    @rule(data=st.data(), suspend=st.booleans())
    def suspend_or_resume(self, data: st.DataObject, suspend: bool) -> None:
        self.stage.change_spec(run={"suspend": suspend})
        self.decide_and_apply(data)

    @rule(data=st.data(), seconds=st.sampled_from([0.001, 1.0, 2.0, 5.0, 9.0]))
    def time_passes(self, data: st.DataObject, seconds: float) -> None:
        self.stage.wait(seconds)
        self.decide_and_apply(data)

    # -- the reaction

    def decide_and_apply(self, data: st.DataObject) -> None:
        """Decide and usually apply all actions; else some, in any order, or slowly."""
        how = data.draw(st.sampled_from(["all", "all", "all", "some", "nothing", "unseen"]))
        if how == "unseen":
            return
        actions = self.decide_and_check().actions
        if how == "some":
            actions = tuple(data.draw(st.permutations(actions)))
            actions = actions[: data.draw(st.integers(0, len(actions)))]
        for action in actions if how != "nothing" else ():
            if how == "some" and isinstance(action, DeleteReplica) and data.draw(st.booleans()):
                self.set(self.stage.attempts[action.uid], deleting=True)
            else:
                self.do(action)
        if how == "all":
            self.decide_and_check()

    def do(self, action: CreateReplica | DeleteReplica | DeleteJob | Event) -> None:
        self.stage.apply_action(action)
        if isinstance(action, CreateReplica):
            self.numbers[f"u{self.stage.attempt_count}"] = (action.replica, action.attempt)

    def decide_and_check(self) -> Decision:
        """Decide once, check the invariants, and write the status."""
        before = self.stage.status
        self.scaled_or_suspended |= self.suspended
        decision = self.stage.decide()
        self.check_actions(decision)
        self.check_status(before, decision.status)
        self.check_determinism(decision)
        self.known.update(self.stage.attempts)
        document = msgspec.json.decode(msgspec.json.encode(decision.status), type=JobStatus)
        assert document == decision.status
        self.stage.job = replace(self.stage.job, status=document)
        return decision

    def check_actions(self, decision: Decision) -> None:
        existing = self.stage.attempts
        created = [action for action in decision.actions if isinstance(action, CreateReplica)]
        deleted = [action for action in decision.actions if isinstance(action, DeleteReplica)]
        assert max(count_actions(decision).values(), default=1) == 1
        for gone in deleted:
            assert existing[gone.uid].id == gone.replica
            assert not existing[gone.uid].deleting
        assert not {action.replica for action in created} & {
            attempt.id for attempt in existing.values()
        }
        assert len({action.replica for action in created}) == len(created)
        if created and self.stage.job.job_restart_policy is not None:
            self.check_generation(decision)
        for action in created:
            self.check_creation(action)
        if DeleteJob() in decision.actions:
            self.check_job_deletion(decision.status)
        if not self.suspended and not decision.status.finished:
            strangers = [action for action in deleted if action.replica.type == "Stranger"]
            assert not strangers

    def check_generation(self, decision: Decision) -> None:
        """Check that nothing is left of an earlier round if all replicas are recreated together."""
        records = decision.status.records.values()
        released = {uid for record in records for uid in (record.last, *record.past)}
        assert not released & self.stage.attempts.keys()

    def check_job_deletion(self, status: JobStatus) -> None:
        live = self.stage.job.run_policy.ttl_seconds_after_finished
        assert live is not None
        assert status.completion_time is not None
        assert self.stage.now >= status.completion_time + timedelta(seconds=live)

    def check_creation(self, action: CreateReplica) -> None:
        status = self.stage.status
        record = status.record(action.replica)
        assert not self.suspended
        assert not status.finished
        assert (
            0
            <= action.replica.index
            < desired_replicas(self.stage.job, action.replica.type, self.stage.framework)
        )
        assert not record.completed
        assert not record.failed
        assert record.retry_at is None or record.retry_at <= self.stage.now
        seen = [self.numbers[uid] for uid in self.known if uid in self.numbers]
        assert (action.replica, action.attempt) not in seen
        restarts = record.restarts + self.stage.status.restarts
        assert self.scaled_or_suspended or restarts >= action.attempt
        for dependency in self.stage.job.replicas[action.replica.type].depends_on:
            self.check_dependency(dependency)

    def check_dependency(self, dependency: Dependency) -> None:
        """Check that all replicas of the type run or have succeeded."""
        number = desired_replicas(self.stage.job, dependency.type, self.stage.framework)
        phases = {ReplicaPhase.SUCCEEDED}
        if dependency.status == "Ready":
            phases.add(ReplicaPhase.RUNNING)
        met = {
            attempt.id.index
            for attempt in self.stage.attempts.values()
            if attempt.id.type == dependency.type and attempt.phase in phases
        }
        for index in range(number):
            record = self.stage.status.record(ReplicaId(dependency.type, index))
            assert index in met or record.completed

    def check_status(self, before: JobStatus, after: JobStatus) -> None:
        final = tuple(
            condition
            for condition in after.conditions
            if condition.type in FINAL and condition.status == "True"
        )
        assert len(final) <= 1
        if self.final:
            assert final == self.final
            assert after.completion_time == before.completion_time
        self.final = final
        moving = (ConditionType.RUNNING, ConditionType.RESTARTING)
        assert sum(after.has_condition(type) for type in moving) <= (0 if final else 1)
        self.check_records(before, after)
        self.check_replica_counts(after)
        self.check_times(before, after)

    def check_records(self, before: JobStatus, after: JobStatus) -> None:
        restarted = after.restarts > before.restarts
        for key, old in before.records.items():
            new = after.records[key]
            assert new.restarts >= old.restarts
            assert new.attempts >= old.attempts
            assert restarted or new.completed >= old.completed
            assert restarted or new.failed >= old.failed
        assert restarts(after) <= len(self.ended) + self.in_place
        policy = self.stage.job.job_restart_policy
        assert after.restarts - before.restarts <= (0 if policy is None else 1)
        if restarted:
            assert not any(record.current for record in after.records.values())
        limit = self.stage.job.run_policy.backoff_limit if policy is None else policy.max_restarts
        if (
            limit is not None
            and not after.has_condition(ConditionType.FAILED)
            and not self.suspended
        ):
            assert restarts(after) <= limit or after.finished

    def check_times(self, before: JobStatus, after: JobStatus) -> None:
        limit = self.stage.job.run_policy.active_deadline_seconds
        if after.finished or self.suspended or limit is None:
            return
        assert after.start_time is not None
        assert self.stage.now < after.start_time + timedelta(seconds=limit)
        if before.has_condition(ConditionType.SUSPENDED):
            assert after.start_time == self.stage.now

    def check_replica_counts(self, after: JobStatus) -> None:
        if after.finished:
            return
        for type, counts in after.replica_statuses.items():
            assert counts.active + counts.succeeded + counts.failed <= desired_replicas(
                self.stage.job, type, self.stage.framework
            )

    def check_determinism(self, decision: Decision) -> None:
        """Check that a repeated or reordered observation gives the same decision."""
        job = replace(self.stage.job, status=decision.status)
        existing = tuple(self.stage.attempts.values())
        again = self.decide(job, existing)
        assert again.status == decision.status
        if DeleteJob() not in again.actions:
            assert count_actions(again) == count_actions(decision)
        turned = self.decide(self.stage.job, existing[::-1])
        assert turned.status == decision.status
        assert Counter(turned.actions) == Counter(decision.actions)

    def decide(self, job: Job, there: Iterable[ObservedReplica], later: float = 0.0) -> Decision:
        now = self.stage.now + timedelta(seconds=later)
        return decide(
            job,
            ObservedReplicas(tuple(there)),
            self.stage.framework,
            now=now,
            backoff=PACE,
            finish=self.stage.finish,
        )

    @property
    def suspended(self) -> bool:
        return self.stage.job.run_policy.suspend

    # -- convergence

    @invariant()
    @precondition(lambda self: hasattr(self, "stage"))
    def check_convergence(self) -> None:
        """Check that a few steps reach a fixed point, with an exact ``requeue_after``."""
        stage = JobSimulation(self.stage.job, self.stage.finish)
        stage.now, stage.attempts = self.stage.now, dict(self.stage.attempts)
        stage.attempt_count = self.stage.attempt_count
        for _ in range(4):
            before = stage.status
            last = stage.step()
            if not last.actions and last.status == before:
                break
        assert stage.removed or (not last.actions and last.status == before)
        if not stage.removed:
            self.check_requeue_time(stage, last)

    def check_requeue_time(self, stage: JobSimulation, last: Decision) -> None:
        existing = tuple(stage.attempts.values())
        if last.requeue_after is None or any(attempt.deleting for attempt in existing):
            return
        stage.wait(last.requeue_after / 2)
        early = stage.decide()
        assert not early.actions
        assert early.status == last.status
        stage.wait(last.requeue_after / 2)
        then = stage.decide()
        assert then.actions


class LongRunningJobMachine(JobMachine):
    """The same with longer runs."""


JobMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=20)
LongRunningJobMachine.TestCase.settings = settings(
    max_examples=1000, stateful_step_count=40, derandomize=False, database=None
)
TestWorld = JobMachine.TestCase
TestDays = pytest.mark.real(
    pytest.mark.slow(pytest.mark.timeout(300)(LongRunningJobMachine.TestCase))
)
