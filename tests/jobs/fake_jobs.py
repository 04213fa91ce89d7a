"""Fake jobs with scripted views and logs, for tests of their presentation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio

from danlu.errors import UsageError
from danlu.jobs.types import (
    JobBackend,
    JobResult,
    JobView,
    LogLine,
    ReplicaCommand,
    ReplicaView,
    Submission,
)
from danlu.training.types import (
    ConditionType,
    FirstFailure,
    JobCondition,
    JobStatus,
    ReplicaId,
    ReplicaType,
)

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def replica(index: int, type: str = "Worker") -> ReplicaId:
    return ReplicaId(ReplicaType(type), index)


def condition(type: ConditionType, seconds: float = 0, message: str = "") -> JobCondition:
    at = START + timedelta(seconds=seconds)
    return JobCondition(type, "True", f"PyTorchJob{type}", message, at, at)


def view(
    state: str = "Running",
    *replicas: ReplicaView,
    name: str = "demo",
    seconds: float = 2.5,
    first: FirstFailure | None = None,
    message: str = "",
    **more: Any,
) -> JobView:
    """Return a view of a PyTorchJob with two workers that runs for ``seconds``."""
    conditions = [condition(ConditionType.CREATED)]
    if state in ("Succeeded", "Failed"):
        conditions.append(condition(ConditionType(state), seconds, message))
    result = START + timedelta(seconds=seconds) if len(conditions) == 2 else None
    status = JobStatus(tuple(conditions), completion_time=result, first_failure=first)
    found = replicas or tuple(ReplicaView(replica(index), "Running") for index in range(2))
    return JobView(
        name, "PyTorchJob", "pytorch", state, status, tuple(found), created=START, **more
    )


def line(text: str | bytes, index: int = 0, *, number: int = 0, attempt: int = 0) -> LogLine:
    data = text.encode() if isinstance(text, str) else text
    return LogLine(replica(index), attempt, number, START + timedelta(seconds=number), data)


@dataclass
class JobScript:
    """The script of a job; if ``endless``, it waits for a stop before its last view."""

    views: Sequence[JobView]
    lines: Sequence[LogLine] = ()
    value: bytes | None = None
    command: ReplicaCommand | None = None
    endless: bool = False
    stopped: anyio.Event = field(default_factory=anyio.Event)


class FakeJobs:
    """Jobs by name; a submitted job follows the story ``next``."""

    def __init__(self, **stories: JobScript) -> None:
        self.stories = stories
        self.next: JobScript | None = None
        self.submitted: list[Submission] = []
        self.calls: list[tuple[Any, ...]] = []
        self.earlier: dict[str, list[str]] = {}

    def _find_script(self, name: str) -> JobScript:
        if name not in self.stories:
            listing = ", ".join(self.stories)
            raise UsageError(f"job {name!r} not found", hint=f"existing jobs: {listing}")
        return self.stories[name]

    async def submit(self, submission: Submission) -> str:
        self.submitted.append(submission)
        assert self.next is not None
        self.stories[submission.job.name] = self.next
        return submission.job.name

    async def names(self) -> Sequence[str]:
        return [name for name in self.stories if "@" not in name]

    async def runs(self, name: str) -> Sequence[str]:
        return self.earlier.get(name, [])

    async def view(self, name: str) -> JobView:
        return self._find_script(name).views[-1]

    async def watch(self, name: str) -> AsyncIterator[JobView]:
        story = self._find_script(name)
        for view in story.views:
            if view.finished and story.endless:
                await story.stopped.wait()
            yield view
            await anyio.lowlevel.checkpoint()

    async def logs(
        self,
        name: str,
        *,
        replicas: Sequence[ReplicaId] = (),
        follow: bool = False,
        tail: int | None = None,
        newest: bool = False,
    ) -> AsyncIterator[LogLine]:
        self.calls.append(("logs", name, tuple(map(str, replicas)), follow, tail))
        lines = [
            line
            for line in self._find_script(name).lines
            if not replicas or line.replica in replicas
        ]
        for line in lines if tail is None else lines[max(0, len(lines) - tail) :]:
            yield line
            await anyio.lowlevel.checkpoint()

    async def command(self, name: str, replica: ReplicaId) -> ReplicaCommand:
        result = self._find_script(name).command
        if result is None:
            raise UsageError(f"{replica} has not run yet")
        return result

    async def stop(self, name: str, *, grace: float | None = None) -> None:
        self.calls.append(("stop", name, grace))
        self._find_script(name).stopped.set()

    async def remove(self, name: str) -> None:
        if not (await self.view(name)).finished:
            raise UsageError(f"{name} is not finished", hint="stop it first")
        self.calls.append(("remove", name))
        del self.stories[name]

    async def suspend(self, name: str, *, suspended: bool) -> None:
        self._find_script(name)
        self.calls.append(("suspend", name, suspended))

    async def scale(self, name: str, *, replicas: Mapping[str, int]) -> None:
        self._find_script(name)
        self.calls.append(("scale", name, dict(replicas)))

    async def result(self, name: str) -> JobResult:
        return JobResult(await self.view(name), self._find_script(name).value)


def _check_protocol(jobs: FakeJobs) -> JobBackend:
    return jobs
