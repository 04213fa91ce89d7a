"""Jobs that are told what will happen: for tests of what people see of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio

from danlu.errors import UsageError
from danlu.jobs.types import Command, Jobs, JobView, LogLine, ReplicaView, Result, Submission
from danlu.training.types import (
    Condition,
    ConditionType,
    FirstFailure,
    JobStatus,
    ReplicaId,
    ReplicaType,
)

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def replica(index: int, type: str = "Worker") -> ReplicaId:
    return ReplicaId(ReplicaType(type), index)


def condition(type: ConditionType, seconds: float = 0, message: str = "") -> Condition:
    at = START + timedelta(seconds=seconds)
    return Condition(type, "True", f"PyTorchJob{type}", message, at, at)


def view(
    state: str = "Running",
    *replicas: ReplicaView,
    name: str = "demo",
    seconds: float = 2.5,
    first: FirstFailure | None = None,
    message: str = "",
    **more: Any,
) -> JobView:
    """A view of a PyTorchJob of two workers, that in the end took ``seconds``."""
    conditions = [condition(ConditionType.CREATED)]
    if state in ("Succeeded", "Failed"):
        conditions.append(condition(ConditionType(state), seconds, message))
    ended = START + timedelta(seconds=seconds) if len(conditions) == 2 else None
    status = JobStatus(tuple(conditions), completion_time=ended, first_failure=first)
    found = replicas or tuple(ReplicaView(replica(index), "Running") for index in range(2))
    return JobView(
        name, "PyTorchJob", "pytorch", state, status, tuple(found), created=START, **more
    )


def line(text: str | bytes, index: int = 0, *, number: int = 0, attempt: int = 0) -> LogLine:
    data = text.encode() if isinstance(text, str) else text
    return LogLine(replica(index), attempt, number, START + timedelta(seconds=number), data)


@dataclass
class Story:
    """What happens to one job: it waits before the last view, where ``endless``, to be stopped."""

    views: Sequence[JobView]
    lines: Sequence[LogLine] = ()
    value: bytes | None = None
    command: Command | None = None
    endless: bool = False
    stopped: anyio.Event = field(default_factory=anyio.Event)


class FakeJobs:
    """Jobs by name; a job that is submitted has the story ``next``."""

    def __init__(self, **stories: Story) -> None:
        self.stories = stories
        self.next: Story | None = None
        self.submitted: list[Submission] = []
        self.calls: list[tuple[Any, ...]] = []

    def _story(self, name: str) -> Story:
        if name not in self.stories:
            listed = ", ".join(self.stories)
            raise UsageError(f"there is no job {name}", hint=f"there are {listed}")
        return self.stories[name]

    async def submit(self, submission: Submission) -> str:
        self.submitted.append(submission)
        assert self.next is not None
        self.stories[submission.job.name] = self.next
        return submission.job.name

    async def names(self) -> Sequence[str]:
        return list(self.stories)

    async def view(self, name: str) -> JobView:
        return self._story(name).views[-1]

    async def watch(self, name: str) -> AsyncIterator[JobView]:
        story = self._story(name)
        for one in story.views:
            if one.finished and story.endless:
                await story.stopped.wait()
            yield one
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
        lines = [one for one in self._story(name).lines if not replicas or one.replica in replicas]
        for one in lines if tail is None else lines[max(0, len(lines) - tail) :]:
            yield one
            await anyio.lowlevel.checkpoint()

    async def command(self, name: str, replica: ReplicaId) -> Command:
        found = self._story(name).command
        if found is None:
            raise UsageError(f"{replica} has not run yet")
        return found

    async def stop(self, name: str, *, grace: float = 5.0) -> None:
        self.calls.append(("stop", name, grace))
        self._story(name).stopped.set()

    async def remove(self, name: str) -> None:
        if not (await self.view(name)).finished:
            raise UsageError(f"{name} is not finished", hint="stop it first")
        self.calls.append(("remove", name))
        del self.stories[name]

    async def suspend(self, name: str, *, suspended: bool) -> None:
        self._story(name)
        self.calls.append(("suspend", name, suspended))

    async def scale(self, name: str, *, replicas: Mapping[str, int]) -> None:
        self._story(name)
        self.calls.append(("scale", name, dict(replicas)))

    async def result(self, name: str) -> Result:
        return Result(await self.view(name), self._story(name).value)


def _is_one(jobs: FakeJobs) -> Jobs:
    return jobs
