"""Helpers of the sweep tests: a small job, and a backend that runs scripted jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio

from danlu.errors import UsageError
from danlu.jobs.types import JobResult, JobView, LogLine, ReplicaCommand, Submission
from danlu.training.progress import TrainingProgress
from danlu.training.types import (
    ConditionType,
    FirstFailure,
    Job,
    JobCondition,
    JobStatus,
    ReplicaId,
    ReplicaSpec,
    ReplicaType,
    RestartPolicy,
)

WORKER = ReplicaType("Worker")
LEADER = ReplicaId(WORKER, 0)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(
    command: Sequence[str] = ("python", "train.py"),
    *,
    args: Sequence[str] = (),
    kind: str = "PyTorchJob",
    name: str = "pytorch",
    replicas: Mapping[str, int] | None = None,
    resources: Mapping[str, Any] | None = None,
) -> Job:
    container: dict[str, Any] = {"name": name, "command": list(command), "args": list(args)}
    if resources is not None:
        container["resources"] = resources
    template = {"spec": {"containers": [{"name": "side", "command": ["log"]}, container]}}
    return Job(
        kind=kind,
        name="mnist",
        replicas={
            ReplicaType(type): ReplicaSpec(count, template, RestartPolicy.NEVER)
            for type, count in (replicas or {WORKER: 1}).items()
        },
    )


def submission(**parts: Any) -> Submission:
    return Submission(job(**parts), Path("/project"))


def progress(percentage: int, **metrics: float) -> TrainingProgress:
    return TrainingProgress(percentage=percentage, metrics=metrics)


@dataclass(frozen=True)
class TrialScript:
    """The script of a job: its reports, its log and its exit code."""

    reports: tuple[TrainingProgress, ...] = ()
    log: tuple[str, ...] = ()
    code: int = 0


class ScriptedJobs:
    """A backend that simulates jobs: ``course`` returns the script for a submission.

    ``most`` is how many ran at once. A job in ``held`` waits until it is stopped.
    """

    def __init__(
        self,
        course: Callable[[Submission], TrialScript],
        *,
        held: Callable[[str], bool] | None = None,
    ) -> None:
        self.course = course
        self.held = held or (lambda name: False)
        self.submitted: dict[str, Submission] = {}
        self.running: set[str] = set()
        self.stopped: list[str] = []
        self.most = 0
        self._ends: dict[str, anyio.Event] = {}

    async def submit(self, submission: Submission) -> str:
        name = submission.job.name
        if name in self.submitted:
            raise UsageError(f"job {name} already exists")
        self.submitted[name] = submission
        self.running.add(name)
        self._ends[name] = anyio.Event()
        self.most = max(self.most, len(self.running))
        return name

    async def names(self) -> Sequence[str]:
        return tuple(reversed(self.submitted))

    async def view(self, name: str) -> JobView:
        return self._make_view(name, None, None if name in self.running else 0)

    async def watch(self, name: str) -> AsyncIterator[JobView]:
        course = self.course(self.submitted[name])
        yield self._make_view(name, None)
        for report in course.reports:
            # Let other jobs take their turns, so that any that should not run now shows.
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            if name in self.stopped:
                break
            yield self._make_view(name, report)
        if self.held(name):
            await self._ends[name].wait()
        self.running.discard(name)
        last = course.reports[-1] if course.reports else None
        yield self._make_view(name, last, 143 if name in self.stopped else course.code)

    async def logs(
        self,
        name: str,
        *,
        replicas: Sequence[ReplicaId] = (),
        follow: bool = False,
        tail: int | None = None,
        newest: bool = False,
    ) -> AsyncIterator[LogLine]:
        assert list(replicas) == [LEADER]
        for number, text in enumerate(self.course(self.submitted[name]).log):
            yield LogLine(LEADER, 0, number, NOW, text.encode())

    async def stop(self, name: str, *, grace: float | None = None) -> None:
        self.stopped.append(name)
        self._ends[name].set()

    async def remove(self, name: str) -> None:
        del self.submitted[name]

    async def suspend(self, name: str, *, suspended: bool) -> None:
        raise NotImplementedError

    async def scale(self, name: str, *, replicas: Mapping[str, int]) -> None:
        raise NotImplementedError

    async def command(self, name: str, replica: ReplicaId) -> ReplicaCommand:
        raise NotImplementedError

    async def result(self, name: str) -> JobResult:
        raise NotImplementedError

    def _make_view(
        self, name: str, progress: TrainingProgress | None, code: int | None = None
    ) -> JobView:
        end = ConditionType.RUNNING
        if code is not None:
            end = ConditionType.SUCCEEDED if code == 0 else ConditionType.FAILED
        status = JobStatus(
            conditions=(JobCondition(end, "True"),),
            first_failure=FirstFailure(LEADER, exit_code=code, reason="Error") if code else None,
        )
        return JobView(name, "PyTorchJob", "pytorch", str(end), status, progress=progress)
