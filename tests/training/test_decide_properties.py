"""Whatever happens to a job, in whatever order: what holds of every decision about it.

The driver here is a bad one: it carries out some of what was decided, in any order, and forgets
the rest; what it ends may take its time. The decider remembers nothing but the status, as JSON.
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
from danlu.training.standing import wanted
from danlu.training.types import (
    CleanPodPolicy,
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
    Phase,
    ReplicaId,
    ReplicaType,
    RestartPolicy,
    RunPolicy,
)
from tests.training.stage import PACE, Stage, job

KINDS = {
    "PyTorchJob": ("Master", "Worker"),
    "TFJob": ("Chief", "PS", "Worker"),
    "MPIJob": ("Launcher", "Worker"),
    "JAXJob": ("Worker",),
}
ONE = ("Master", "Chief", "Launcher")
ENDED = (Phase.SUCCEEDED, Phase.FAILED)
FINAL = (ConditionType.SUCCEEDED, ConditionType.FAILED)

policies = st.sampled_from(RestartPolicy)
codes = st.sampled_from([0, 1, 127, 128, 137, 143, None])


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    kind = draw(st.sampled_from(sorted(KINDS)))
    led = draw(st.booleans()) or kind == "MPIJob"
    types = [type for type in KINDS[kind] if led or type not in ONE]
    numbers: dict[str, Any] = {
        type: 1 if type in ONE else draw(st.integers(1, 3)) for type in types
    }
    return job(
        kind,
        policies={type: draw(policies) for type in types},
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


def deeds(decision: Decision) -> Counter[object]:
    """What a decision does, without what it tells."""
    return Counter(one for one in decision.actions if not isinstance(one, Event))


def restarts(status: JobStatus) -> int:
    return sum(one.restarts for one in status.records.values())


class World(RuleBasedStateMachine):
    """A job to which anything happens."""

    @initialize(job=jobs())
    def begin(self, job: Job) -> None:
        self.stage = Stage(job)
        self.ended: set[str] = set()  # attempts that may count as one restart each
        self.in_place = 0
        self.numbers: dict[str, tuple[ReplicaId, int]] = {}  # of attempts by uid, as created
        self.known: set[str] = set()  # attempts that the decider has seen
        self.final: tuple[Condition, ...] = ()
        self.put_aside = job.run_policy.suspend  # ever: numbers of attempts are not of restarts

    # -- what happens, each followed by what is done about it

    def some(self, data: st.DataObject, *phases: Phase) -> ObservedReplica | None:
        there = self.stage.there.values()
        found = [one for one in there if one.phase in phases]
        return data.draw(st.sampled_from(found)) if found else None

    def set(self, one: ObservedReplica, **changes: object) -> None:
        self.stage.there[one.uid] = replace(one, **changes)

    @rule(data=st.data(), all=st.booleans())
    def starts(self, data: st.DataObject, all: bool) -> None:
        pending = [one for one in self.stage.there.values() if one.phase is Phase.PENDING]
        for one in pending if all else pending[:1]:
            self.set(one, phase=Phase.RUNNING, started=self.stage.now)
        self.react(data)

    @rule(data=st.data(), code=codes)
    def ends(self, data: st.DataObject, code: int | None) -> None:
        if one := self.some(data, Phase.PENDING, Phase.RUNNING):
            phase = Phase.SUCCEEDED if code == 0 else Phase.FAILED
            self.set(one, phase=phase, exit_code=code, finished=self.stage.now)
            self.ended.add(one.uid)
        self.react(data)

    @rule(data=st.data(), times=st.integers(1, 2))
    def restarts_in_place(self, data: st.DataObject, times: int) -> None:
        if one := self.some(data, Phase.RUNNING):
            self.set(one, restarts=one.restarts + times)
            self.in_place += times
        self.react(data)

    @rule(data=st.data(), at_once=st.booleans())
    def is_ended_by_others(self, data: st.DataObject, at_once: bool) -> None:
        if one := self.some(data, *Phase):
            self.ended.add(one.uid)
            if at_once or one.deleting:
                del self.stage.there[one.uid]
            else:
                self.set(one, deleting=True)
        self.react(data)

    @rule(data=st.data(), phase=st.sampled_from(Phase), index=st.integers(-1, 3))
    def appears(self, data: st.DataObject, phase: Phase, index: int) -> None:
        type = data.draw(st.sampled_from([*self.stage.job.replicas, ReplicaType("Stranger")]))
        uid = self.stage.add("x-0", phase)
        self.set(self.stage.there[uid], id=ReplicaId(type, index))
        self.ended.add(uid)
        self.react(data)

    @rule(data=st.data(), number=st.integers(1, 4))
    def is_scaled(self, data: st.DataObject, number: int) -> None:
        type = data.draw(st.sampled_from(sorted(self.stage.job.replicas)))
        if type not in ONE:
            numbers: dict[str, Any] = {type: number}
            self.stage.ask(**numbers)
            self.put_aside = True
        self.react(data)

    @rule(data=st.data(), suspend=st.booleans())
    def is_suspended(self, data: st.DataObject, suspend: bool) -> None:
        self.stage.ask(run={"suspend": suspend})
        self.react(data)

    @rule(data=st.data(), seconds=st.sampled_from([0.001, 1.0, 2.0, 5.0, 9.0]))
    def time_passes(self, data: st.DataObject, seconds: float) -> None:
        self.stage.wait(seconds)
        self.react(data)

    # -- what is done about it

    def react(self, data: st.DataObject) -> None:
        """Decide once or more; most often all is done, else some of it in any order, or slowly."""
        how = data.draw(st.sampled_from(["all", "all", "all", "some", "nothing", "unseen"]))
        if how == "unseen":
            return
        actions = self.decided().actions
        if how == "some":
            actions = tuple(data.draw(st.permutations(actions)))
            actions = actions[: data.draw(st.integers(0, len(actions)))]
        for action in actions if how != "nothing" else ():
            if how == "some" and isinstance(action, DeleteReplica) and data.draw(st.booleans()):
                self.set(self.stage.there[action.uid], deleting=True)
            else:
                self.do(action)
        if how == "all":
            self.decided()

    def do(self, action: CreateReplica | DeleteReplica | DeleteJob | Event) -> None:
        self.stage.do(action)
        if isinstance(action, CreateReplica):
            self.numbers[f"u{self.stage.born}"] = (action.replica, action.attempt)

    def decided(self) -> Decision:
        """Decide once; the decision keeps every promise, and its status is written."""
        before = self.stage.status
        self.put_aside |= self.suspended
        decision = self.stage.decide()
        self.actions_fit(decision)
        self.status_follows(before, decision.status)
        self.says_the_same(decision)
        self.known.update(self.stage.there)
        written = msgspec.json.decode(msgspec.json.encode(decision.status), type=JobStatus)
        assert written == decision.status
        self.stage.job = replace(self.stage.job, status=written)
        return decision

    def actions_fit(self, decision: Decision) -> None:
        there = self.stage.there
        created = [one for one in decision.actions if isinstance(one, CreateReplica)]
        deleted = [one for one in decision.actions if isinstance(one, DeleteReplica)]
        assert max(deeds(decision).values(), default=1) == 1
        for gone in deleted:
            assert there[gone.uid].id == gone.replica
            assert not there[gone.uid].deleting
        assert not {one.replica for one in created} & {one.id for one in there.values()}
        assert len({one.replica for one in created}) == len(created)
        for one in created:
            self.may_be_made(one)
        if DeleteJob() in decision.actions:
            self.may_be_removed(decision.status)
        if not self.suspended and not decision.status.finished:
            strangers = [one for one in deleted if one.replica.type == "Stranger"]
            assert not strangers

    def may_be_removed(self, status: JobStatus) -> None:
        live = self.stage.job.run_policy.ttl_seconds_after_finished
        assert live is not None
        assert status.completion_time is not None
        assert self.stage.now >= status.completion_time + timedelta(seconds=live)

    def may_be_made(self, one: CreateReplica) -> None:
        status = self.stage.status
        record = status.record(one.replica)
        assert not self.suspended
        assert not status.finished
        assert 0 <= one.replica.index < wanted(self.stage.job, one.replica.type)
        assert not record.completed
        assert not record.failed
        assert record.retry_at is None or record.retry_at <= self.stage.now
        seen = [self.numbers[uid] for uid in self.known if uid in self.numbers]
        assert (one.replica, one.attempt) not in seen
        assert self.put_aside or record.restarts >= one.attempt

    def status_follows(self, before: JobStatus, after: JobStatus) -> None:
        final = tuple(one for one in after.conditions if one.type in FINAL and one.status == "True")
        assert len(final) <= 1
        if self.final:
            assert final == self.final
            assert after.completion_time == before.completion_time
        self.final = final
        moving = (ConditionType.RUNNING, ConditionType.RESTARTING)
        assert sum(after.has(one) for one in moving) <= (0 if final else 1)
        self.records_follow(before, after)
        self.numbers_fit(after)
        self.times_hold(before, after)

    def records_follow(self, before: JobStatus, after: JobStatus) -> None:
        for key, old in before.records.items():
            new = after.records[key]
            assert new.restarts >= old.restarts
            assert new.attempts >= old.attempts
            assert new.completed >= old.completed
            assert new.failed >= old.failed
        assert restarts(after) <= len(self.ended) + self.in_place
        limit = self.stage.job.run_policy.backoff_limit
        if limit is not None and not after.has(ConditionType.FAILED) and not self.suspended:
            assert restarts(after) <= limit or after.finished

    def times_hold(self, before: JobStatus, after: JobStatus) -> None:
        limit = self.stage.job.run_policy.active_deadline_seconds
        if after.finished or self.suspended or limit is None:
            return
        assert after.start_time is not None
        assert self.stage.now < after.start_time + timedelta(seconds=limit)
        if before.has(ConditionType.SUSPENDED):
            assert after.start_time == self.stage.now

    def numbers_fit(self, after: JobStatus) -> None:
        if after.finished:
            return
        for type, one in after.replica_statuses.items():
            assert one.active + one.succeeded + one.failed <= wanted(self.stage.job, type)

    def says_the_same(self, decision: Decision) -> None:
        """A decider that dies before it acts decides the same again; the order seen is nothing."""
        job = replace(self.stage.job, status=decision.status)
        there = tuple(self.stage.there.values())
        again = self.decide(job, there)
        assert again.status == decision.status
        if DeleteJob() not in again.actions:
            assert deeds(again) == deeds(decision)
        turned = self.decide(self.stage.job, there[::-1])
        assert turned.status == decision.status
        assert Counter(turned.actions) == Counter(decision.actions)

    def decide(self, job: Job, there: Iterable[ObservedReplica], later: float = 0.0) -> Decision:
        now = self.stage.now + timedelta(seconds=later)
        return decide(job, Observed(tuple(there)), self.stage.framework, now=now, pace=PACE)

    @property
    def suspended(self) -> bool:
        return self.stage.job.run_policy.suspend

    # -- when nothing happens any more

    @invariant()
    @precondition(lambda self: hasattr(self, "stage"))
    def comes_to_rest(self) -> None:
        """In few steps, with what it says it would do next at exactly the time it says."""
        stage = Stage(self.stage.job)
        stage.now, stage.there = self.stage.now, dict(self.stage.there)
        stage.born = self.stage.born
        for _ in range(4):
            before = stage.status
            last = stage.step()
            if not last.actions and last.status == before:
                break
        assert stage.removed or (not last.actions and last.status == before)
        if not stage.removed:
            self.waits_exactly(stage, last)

    def waits_exactly(self, stage: Stage, last: Decision) -> None:
        there = tuple(stage.there.values())
        if last.requeue_after is None or any(one.deleting for one in there):
            return
        stage.wait(last.requeue_after / 2)
        early = stage.decide()
        assert not early.actions
        assert early.status == last.status
        stage.wait(last.requeue_after / 2)
        then = stage.decide()
        assert then.actions


class Days(World):
    """The same for longer."""


World.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
Days.TestCase.settings = settings(
    max_examples=1000, stateful_step_count=40, deadline=None, database=None
)
TestWorld = World.TestCase
TestDays = pytest.mark.real(pytest.mark.timeout(300)(Days.TestCase))
