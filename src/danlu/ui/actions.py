"""What a page can do to a job, with the functions and in the words of ``danlu jobs``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, runtime_checkable

from danlu.errors import UsageError
from danlu.jobs.report import describe_kills
from danlu.ui.types import Site

Action = Callable[[Site, str], Awaitable[str]]
"""Does something to the job of this name, and returns a sentence about it."""


async def _stop_job(site: Site, name: str) -> str:
    if (await site.backend.view(name)).finished:
        return f"job {name!r} has already finished"
    await site.backend.stop(name)
    killed = describe_kills(await site.backend.view(name))
    return f"stopped {name}{f'; {killed}' if killed else ''}"


async def _suspend_job(site: Site, name: str) -> str:
    await site.backend.suspend(name, suspended=True)
    return f"suspended {name}"


async def _resume_job(site: Site, name: str) -> str:
    await site.backend.suspend(name, suspended=False)
    return f"resumed {name}"


async def _remove_job(site: Site, name: str) -> str:
    await site.backend.remove(name)
    return f"removed {name}"


@runtime_checkable
class JobReruns(Protocol):
    """A backend that keeps what was submitted, so that it can submit it again."""

    async def run_again(self, name: str) -> str:
        """Start a finished job as it was submitted, and return its name."""


async def _rerun_job(site: Site, name: str) -> str:
    if not isinstance(site.backend, JobReruns):
        raise UsageError(
            f"{site.where} does not keep what was submitted", hint="submit the job again"
        )
    return f"started {await site.backend.run_again(name)} again"


ACTIONS: Mapping[str, Action] = {
    "stop": _stop_job,
    "suspend": _suspend_job,
    "resume": _resume_job,
    "remove": _remove_job,
    "rerun": _rerun_job,
}


async def run_action(site: Site, action: str, name: str) -> str:
    """Run an action; raises :class:`UsageError` if there is none of this name."""
    if action not in ACTIONS:
        raise UsageError(f"unknown action {action}")
    return await ACTIONS[action](site, name)
