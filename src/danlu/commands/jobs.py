"""``danlu jobs``: what there is, how it stands, and following one to its end."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from danlu.errors import UsageError

if TYPE_CHECKING:
    from danlu.commands.settings import Settings
    from danlu.jobs.types import Jobs, JobView, LogLine
    from danlu.training.types import ReplicaId

__all__ = [
    "Overview",
    "Watcher",
    "fields",
    "finished_view",
    "follow",
    "forget_finished",
    "here",
    "replica_of",
    "replicas_of",
    "scaling",
    "views",
]


class Watcher(Protocol):
    """Whoever wants to know of a job as it runs; neither method may block."""

    def view(self, view: JobView) -> None:
        """The job changed."""

    def line(self, line: LogLine) -> None:
        """A replica wrote a line."""


def here(settings: Settings) -> Jobs:
    """The jobs of this machine."""
    from danlu.jobs.local.client import LocalJobs

    return LocalJobs(settings.paths)


@runtime_checkable
class Overview(Protocol):
    """A place that tells of all its jobs at once, with fewer questions than of each alone."""

    async def views(self) -> Sequence[JobView]:
        """All jobs as they stand, the newest first."""


async def views(jobs: Jobs) -> list[JobView]:
    """All jobs as they stand, the newest first."""
    if isinstance(jobs, Overview):
        return list(await jobs.views())
    found = []
    for name in await jobs.names():
        try:
            found.append(await jobs.view(name))
        except UsageError:
            continue  # removed since it was listed
    return found


async def follow(
    jobs: Jobs, name: str, watcher: Watcher, *, tail: int | None = None, newest: bool = False
) -> JobView:
    """Show a job to ``watcher`` until it is finished and all its lines were given; the last view.

    ``tail`` leaves out what was written before, but so many lines of each replica; ``newest`` what
    is written faster than it can be shown.
    """
    import anyio

    async def lines() -> None:
        async for line in jobs.logs(name, follow=True, tail=tail, newest=newest):
            watcher.line(line)

    async with anyio.create_task_group() as group:
        group.start_soon(lines)
        async for view in jobs.watch(name):
            watcher.view(view)
    return await jobs.view(name)


async def finished_view(jobs: Jobs, name: str) -> JobView:
    """The job when it is finished."""
    async for view in jobs.watch(name):
        if view.finished:
            return view
    return await jobs.view(name)


async def forget_finished(jobs: Jobs, name: str) -> None:
    """Remove the finished job ``name``, if there is one; one that runs is left alone."""
    if name in await jobs.names() and (await jobs.view(name)).finished:
        await jobs.remove(name)


def fields(view: JobView) -> dict[str, Any]:
    """A job as JSON: what the job's view has, with replicas by their names."""
    import msgspec

    values: dict[str, Any] = msgspec.to_builtins(view)
    for replica, one in zip(view.replicas, values["replicas"], strict=True):
        one["id"] = str(replica.id)
    first = view.status.first_failure
    if first is not None:
        values["status"]["firstFailure"]["replica"] = str(first.replica)
    return values


def replica_of(text: str, view: JobView) -> ReplicaId:
    """The replica that ``worker-0`` names; :class:`UsageError` with the nearest where none."""
    known = {str(one.id): one.id for one in view.replicas}
    wanted = text.lower()
    if wanted not in known:
        near = get_close_matches(wanted, known, 1)
        listed = ", ".join(list(known)[:5]) + (", …" if len(known) > 5 else "")
        hint = f"did you mean {near[0]}?" if near else f"it has {listed or 'none yet'}"
        raise UsageError(f"{view.name} has no replica {text}", hint=hint)
    return known[wanted]


def replicas_of(texts: Sequence[str], view: JobView) -> list[ReplicaId]:
    """The replicas that are named: ``worker-0``, or ``worker`` for all of a type."""
    found: list[ReplicaId] = []
    for text in texts:
        typed = [one.id for one in view.replicas if one.id.type.lower() == text.lower()]
        found += typed or [replica_of(text, view)]
    return list(dict.fromkeys(found))


def scaling(texts: Sequence[str]) -> dict[str, int]:
    """``worker=3`` as a number by replica type; :class:`UsageError` for another form."""
    found = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not name or not number.isdigit():
            raise UsageError(f"{text!r} is no number of replicas", hint="write it like worker=3")
        found[name] = int(number)
    return found
