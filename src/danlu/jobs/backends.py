"""The job backends of commands: choose one (``--on``), list its jobs, and follow one to its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import anyio
import msgspec

from danlu.engine.contexts import LOCAL, ClusterAddress, find_current_context
from danlu.engine.registry import find_engine
from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.jobs.services import JobTarget
from danlu.jobs.types import JobBackend, JobView, LogLine
from danlu.training.names import MAX_RESULT_BYTES, MAX_TERMINATION_MESSAGE_BYTES
from danlu.training.types import ReplicaId
from danlu.util.danlu_program import LOCAL_CONTEXT
from danlu.util.paths import Paths


def is_remote(on: str) -> bool:
    """Return whether jobs of ``on`` run beyond this machine.

    Raises :class:`UsageError` as :func:`find_target` does.
    """
    return find_target(on).is_remote


def find_target(on: str, settings: Settings | None = None) -> JobTarget:
    """Return where the jobs of the context ``on`` run.

    ``on`` may also be a cluster's address, ``kubernetes[:CONTEXT[/NAMESPACE]]``; empty is the
    current context. With ``settings``, missing parts come from the configuration. Raises
    :class:`UsageError` if the context does not exist or does not run jobs of this process.
    """
    paths = Paths.of() if settings is None else settings.paths
    name, context = find_current_context(paths, chosen=on)
    if context.is_remote and not on:
        return JobTarget(LOCAL_CONTEXT, LOCAL)  # this process runs here, and so do its jobs
    if context.is_remote:
        raise UsageError(
            f"context {name} is another machine, where only danlu's commands can start jobs",
            hint=f"use `danlu train --on {name}`",
        )
    engine = find_engine(context.engine_name)
    if on and not engine.features.runs_jobs:
        raise UsageError(
            f"training jobs do not run in {context.engine}", hint="use `--on local`, or a cluster"
        )
    cluster = context.cluster
    if cluster is not None and settings is not None:
        own = settings.config.kubernetes
        cluster = ClusterAddress(cluster.context or own.context, cluster.namespace or own.namespace)
    return JobTarget(name, context, cluster, bool(engine.job_service))


def result_limit_note(on: str) -> str:
    """Describe the size limit of return values of a cluster; empty elsewhere."""
    if find_target(on).cluster is None:
        return ""
    return (
        f"return values are limited to {MAX_RESULT_BYTES >> 10} KiB in total with danlu's "
        f"operator, and to {MAX_TERMINATION_MESSAGE_BYTES} bytes per replica without it: "
        "write larger ones to a volume"
    )


def select_backend(on: str, settings: Settings) -> JobBackend:
    """Return the job backend of a context, by default of the current one.

    Raises :class:`UsageError` as :func:`find_target` does.
    """
    target = find_target(on, settings)
    # A service is loaded only for its jobs: its client takes longer to import than a local command
    # runs.
    return (
        target.service.open_backend(target, settings)
        if target.is_remote
        else local_backend(settings)
    )


def local_backend(settings: Settings) -> JobBackend:
    """Return the jobs of this machine."""
    # A fifth of the start-up of `danlu train`, and a dry run or a cluster needs none of it.
    from danlu.jobs.local.client import LocalJobs

    return LocalJobs(settings.paths)


def reject_local_flags(on: str, words: Mapping[str, Any]) -> None:
    """Raise :class:`UsageError` if jobs run elsewhere and one of these flags is set."""
    given = [flag for flag, value in words.items() if value]
    target = find_target(on)
    if given and target.is_remote:
        raise UsageError(
            f"{' and '.join(given)} cannot be used with --on {target.name}",
            hint="there use --image REF, or --env, which builds and pushes an image",
        )


# -- jobs of a backend -----------------------------------------------------------------------------


class JobListener(Protocol):
    """Receives the changes and log lines of a running job; neither method may block."""

    def view(self, view: JobView) -> None:
        """Handle a change of the job."""

    def line(self, line: LogLine) -> None:
        """Handle a line of a replica's log."""


@runtime_checkable
class BulkViews(Protocol):
    """A backend that lists the views of all its jobs with fewer requests than one per job."""

    async def views(self, warn: Callable[[str], object] = ...) -> Sequence[JobView]:
        """Return the views of all jobs, newest first.

        ``warn`` is called with a sentence about those that the user may not list.
        """


@runtime_checkable
class RunHistory(Protocol):
    """A backend that keeps earlier runs of a name."""

    async def runs(self, name: str) -> Sequence[str]:
        """Return their names, latest first: ``NAME@2``, ``NAME@1``."""


@runtime_checkable
class JobOutput(Protocol):
    """A backend that keeps what jobs saved, which is not on this machine."""

    async def fetch(self, name: str, directory: Path) -> Sequence[str]:
        """Copy model, output and checkpoints of a finished job to a new directory.

        Returns which of them there were, each in a directory of that name. Raises
        :class:`UsageError` if the directory exists or the job is running.
        """


async def list_run_names(jobs: JobBackend, name: str) -> Sequence[str]:
    """Return the names of the earlier runs of a job's name, the latest first."""
    return await jobs.runs(name) if isinstance(jobs, RunHistory) else ()


async def list_earlier_runs(jobs: JobBackend, name: str) -> list[JobView]:
    """Return the earlier runs of a job's name, the latest first."""
    found = []
    for run in await list_run_names(jobs, name):
        try:
            found.append(await jobs.view(run))
        except UsageError:
            continue  # deleted since it was listed
    return found


async def list_views(
    jobs: JobBackend, warn: Callable[[str], object] = lambda text: None
) -> list[JobView]:
    """Return the views of all jobs, newest first; ``warn`` gets what is missing in the list."""
    if isinstance(jobs, BulkViews):
        return list(await jobs.views(warn))
    found = []
    for name in await jobs.names():
        try:
            found.append(await jobs.view(name))
        except UsageError:
            continue  # deleted since it was listed
    return found


async def follow_job(
    jobs: JobBackend,
    name: str,
    watcher: JobListener,
    *,
    tail: int | None = None,
    newest: bool = False,
) -> JobView:
    """Pass a job's changes and log lines to ``watcher`` until it is finished; return its last view.

    ``tail`` limits the lines written before now, per replica. ``newest`` drops lines that are
    written faster than they can be shown.
    """

    async def lines() -> None:
        async for line in jobs.logs(name, follow=True, tail=tail, newest=newest):
            watcher.line(line)

    async with anyio.create_task_group() as group:
        group.start_soon(lines)
        async for view in jobs.watch(name):
            watcher.view(view)
    return await jobs.view(name)


async def wait_for_finish(
    jobs: JobBackend, name: str, report: Callable[[JobView], object] = lambda view: None
) -> JobView:
    """Wait until a job is finished, and return its view; ``report`` gets every view until then."""
    async for view in jobs.watch(name):
        report(view)
        if view.finished:
            return view
    return await jobs.view(name)


async def remove_finished_job(jobs: JobBackend, name: str) -> None:
    """Delete the job ``name`` if it is finished; a running one is left alone."""
    if name in await jobs.names() and (await jobs.view(name)).finished:
        await jobs.remove(name)


def view_to_json(view: JobView) -> dict[str, Any]:
    """Return the view of a job as JSON, with replicas by their names."""
    values: dict[str, Any] = msgspec.to_builtins(view)
    for replica, values_of_replica in zip(view.replicas, values["replicas"], strict=True):
        values_of_replica["id"] = str(replica.id)
    first = view.status.first_failure
    if first is not None:
        values["status"]["firstFailure"]["replica"] = str(first.replica)
    return values


def find_replica(text: str, view: JobView) -> ReplicaId:
    """Return the replica named ``worker-0``; :class:`UsageError` with the closest name if none."""
    known = {str(replica.id): replica.id for replica in view.replicas}
    wanted = text.lower()
    if wanted not in known:
        near = get_close_matches(wanted, known, 1)
        listed = ", ".join(list(known)[:5]) + (", …" if len(known) > 5 else "")
        hint = f"did you mean {near[0]}?" if near else f"it has {listed or 'none yet'}"
        raise UsageError(f"{view.name} has no replica {text}", hint=hint)
    return known[wanted]


def find_replicas(texts: Sequence[str], view: JobView) -> list[ReplicaId]:
    """Return the named replicas: ``worker-0``, or ``worker`` for all of a type."""
    found: list[ReplicaId] = []
    for text in texts:
        typed = [replica.id for replica in view.replicas if replica.id.type.lower() == text.lower()]
        found += typed or [find_replica(text, view)]
    return list(dict.fromkeys(found))


def parse_scaling(texts: Sequence[str]) -> dict[str, int]:
    """Parse ``worker=3`` to numbers by replica type; :class:`UsageError` if invalid."""
    found = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not name or not number.isdigit():
            raise UsageError(f"invalid number of replicas {text!r}", hint="for example worker=3")
        found[name] = int(number)
    return found
