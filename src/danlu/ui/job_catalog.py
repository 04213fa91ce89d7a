"""The jobs that pages list: rows of the table, read again only when a job has changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Protocol, runtime_checkable

import msgspec

from danlu.errors import UsageError
from danlu.jobs.backends import BulkViews
from danlu.jobs.report import job_end_time
from danlu.jobs.types import JobBackend, JobView
from danlu.submission.job_view_model import count_done, describe_reason
from danlu.training.progress import TrainingProgress

#: Seconds after which jobs of a cluster are asked for again, and such that have finished.
_REFRESH_SECONDS, _FINISHED_SECONDS = 2.0, 30.0

#: Reading thousands of jobs must not keep other pages waiting.
_READ_AT_ONCE = 50


@runtime_checkable
class JobStamps(Protocol):
    """A backend that knows cheaply whether a job, or the list of jobs, has changed."""

    def read_stamp(self, name: str = "") -> Hashable:
        """Return a value that differs after a change; of the list without a name."""


class JobRow(msgspec.Struct, frozen=True):
    """A job in the table of jobs; ``replicas`` is how many are done, of all."""

    name: str
    state: str
    framework: str
    replicas: str
    reason: str
    created: datetime | None
    ended: datetime | None
    is_finished: bool
    progress: TrainingProgress | None
    labels: Mapping[str, str]
    where: str


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs to list: a part of the name, a state, a framework; empty for all."""

    text: str = ""
    state: str = ""
    framework: str = ""

    def accepts_name(self, name: str) -> bool:
        """Return whether the name has the wanted part."""
        return self.text.lower() in name.lower()

    def accepts_row(self, row: JobRow) -> bool:
        """Return whether the state and the framework are the wanted ones."""
        return self.state in ("", row.state) and self.framework in ("", row.framework)


class JobCatalog:
    """Lists the jobs of a backend."""

    def __init__(self, backend: JobBackend) -> None:
        self._backend = backend
        self._stamped = backend if isinstance(backend, JobStamps) else None
        self._names: Sequence[str] = ()
        self._names_stamp: Hashable = None
        self._rows: dict[str, tuple[Hashable, JobRow]] = {}
        #: What is missing in the list, such as kinds that the user may not list.
        self.notes: list[str] = []
        self._live: set[str] = set()
        self._finished: set[str] = set()

    def read_stamp(self, *names: str) -> Hashable:
        """Return a value that differs after the list or one of these jobs has changed."""
        if self._stamped is None:
            return time.monotonic() // _REFRESH_SECONDS
        return tuple(self._stamped.read_stamp(name) for name in ("", *names))

    @property
    def has_live_rows(self) -> bool:
        """Whether a job that has been listed is not finished."""
        return bool(self._live)

    def read_live_stamp(self) -> Hashable:
        """Return a value that differs after any job that has been listed has changed."""
        return self.read_stamp(*self._live)

    async def read_view(self, name: str) -> JobView:
        """Return the view of a job; raises :class:`UsageError` if it does not exist."""
        view = await self._backend.view(name)
        (self._finished.add if view.finished else self._finished.discard)(name)
        return view

    def read_job_stamp(self, *names: str) -> Hashable:
        """Return a value that differs after one of these jobs has changed, and while one runs."""
        finished = self._finished.issuperset(names)
        seconds = _FINISHED_SECONDS if finished else _REFRESH_SECONDS
        if self._stamped is None:
            return time.monotonic() // seconds
        clock = 0.0 if finished else time.monotonic() // 1
        return clock, *(self._stamped.read_stamp(name) for name in names)

    async def list_rows(
        self, wanted: JobFilter, *, start: int, count: int
    ) -> tuple[list[JobRow], bool, int]:
        """Return rows, newest first, whether there are more, and the number of all jobs.

        Only as many jobs are read as are needed to fill ``count`` rows.
        """
        await self._refresh_names()
        rows: list[JobRow] = []
        skipped = 0
        for name in self._names:
            if not wanted.accepts_name(name):
                continue
            row = await self._read_row(name)
            if row is None or not wanted.accepts_row(row):
                continue
            if skipped < start:
                skipped += 1
            elif len(rows) == count:
                return rows, True, len(self._names)
            else:
                rows.append(row)
        return rows, False, len(self._names)

    async def _refresh_names(self) -> None:
        stamp = self.read_stamp()
        if stamp == self._names_stamp:
            return
        if isinstance(self._backend, BulkViews):
            self.notes = []
            views = await self._backend.views(self.notes.append)
            self._rows = {view.name: (stamp, describe_row(view)) for view in views}
            self._live = {view.name for view in views if not view.finished}
            self._names = [view.name for view in views]
        else:
            self._names = await self._backend.names()
            known = set(self._names)
            self._rows = {name: row for name, row in self._rows.items() if name in known}
            self._live &= known
        self._names_stamp = stamp

    async def _read_row(self, name: str) -> JobRow | None:
        known = self._rows.get(name)
        stamp = self._names_stamp if self._stamped is None else self._stamped.read_stamp(name)
        if known is not None and known[0] == stamp:
            return known[1]
        with suppress(UsageError):  # removed since it was listed
            row = describe_row(await self.read_view(name))
            self._rows[name] = stamp, row
            (self._live.discard if row.is_finished else self._live.add)(name)
            if len(self._rows) % _READ_AT_ONCE == 0:
                await asyncio.sleep(0)
            return row
        return None


def describe_row(view: JobView) -> JobRow:
    """Return the row of a job."""
    progress = view.progress
    if progress is not None:
        progress = msgspec.structs.replace(progress, history={})
    return JobRow(
        view.name,
        view.state,
        view.framework,
        f"{count_done(view)}/{len(view.replicas)}",
        describe_reason(view),
        view.created,
        job_end_time(view),
        view.finished,
        progress,
        view.labels,
        view.where,
    )
