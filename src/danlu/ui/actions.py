"""What a page can do to a job or an environment, in the words of the commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, runtime_checkable

from danlu.environments.manage import find_environment
from danlu.errors import UsageError
from danlu.jobs.report import describe_kills
from danlu.ui.commands import run_command
from danlu.ui.types import Site

Action = Callable[[Site, str], Awaitable[str]]
"""Does something to what has this name, and returns a sentence about it."""


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


async def _start_environment(site: Site, name: str) -> str:
    find_environment(name, site.settings.paths)
    await run_command("start", name)
    return f"started {name}"


async def _stop_environment(site: Site, name: str) -> str:
    find_environment(name, site.settings.paths)
    await run_command("stop", name)
    return f"stopped {name}"


async def _check_machine(site: Site, name: str) -> str:
    return await site.machine.run_checks(site.where)


ACTIONS: Mapping[str, Mapping[str, Action]] = {
    "jobs": {
        "stop": _stop_job,
        "suspend": _suspend_job,
        "resume": _resume_job,
        "remove": _remove_job,
        "rerun": _rerun_job,
    },
    "environments": {"start": _start_environment, "stop": _stop_environment},
    "machine": {"check": _check_machine},
}
"""By the kind of thing, which is a part of the path."""


async def run_action(site: Site, kind: str, name: str, action: str) -> str:
    """Run an action; raises :class:`UsageError` if it does not exist."""
    actions = ACTIONS.get(kind, {})
    if action not in actions:
        raise UsageError(f"unknown action {action}")
    return await actions[action](site, name)
