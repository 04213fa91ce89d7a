"""What stands around the controllers: decorators of pods, the server of reports, ties of jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from danlu.kube.client import Client
from danlu.kube.informer import Informer
from danlu.kube.manager import Manager
from danlu.kube.resources import Resource
from danlu.kube.types import Clock, Key
from danlu.operator.decorating import decorators
from danlu.operator.reports.keeping import MOST, Keeper
from danlu.operator.reports.keys import Keys, keys_of, served_url
from danlu.operator.reports.maps import Reporter
from danlu.operator.reports.mounting import ReportMounts, asked_for
from danlu.operator.reports.serving import TOO_LARGE, Desk
from danlu.operator.ties import add_ties
from danlu.operator.types import JobObject, OperatorSettings, PodDecorator

__all__ = ["Surroundings", "surrounded"]

Jobs = Mapping[Resource[JobObject], Informer[JobObject]]


@dataclass(frozen=True)
class Surroundings:
    """What must be there before the first pod is made; ``keys`` are None without reports."""

    settings: OperatorSettings
    decorators: tuple[PodDecorator, ...] = ()
    keys: Keys | None = None

    def attach(self, manager: Manager, jobs: Jobs, *, clock: Clock) -> ReportServer | None:
        """Add the ties of ``jobs`` and the server of their reports to ``manager``."""
        add_ties(manager, jobs, namespace=self.settings.namespace, clock=clock)
        if self.keys is None:
            return None
        server = ReportServer(manager.client, self.settings.reports_address, self.keys, jobs)
        manager.background(server.run)
        return server


@asynccontextmanager
async def surrounded(
    client: Client, settings: OperatorSettings, *, namespace: str
) -> AsyncIterator[Surroundings]:
    """What ``settings`` ask for, while the context lasts; ``namespace`` is the operator's own.

    Raises :class:`UsageError` for addresses and authorities that are none, and
    :class:`MachineError` where no certificate can be made.
    """
    keys: Keys | None = None
    mounts: tuple[PodDecorator, ...] = ()
    if settings.reports_address:
        url = served_url(settings.reports_address, settings.reports_url)
        keys = await keys_of(client, namespace, url=url)
        mounts = (ReportMounts(client, keys, url=url),)
    async with decorators(settings.decorators) as others:
        yield Surroundings(settings, (*mounts, *others), keys)


class ReportServer:
    """Takes the reports of jobs that ask for it, leading or not; ``port`` is set while it runs."""

    def __init__(self, client: Client, address: str, keys: Keys, jobs: Jobs) -> None:
        self.port = 0
        self._address = address
        self._keys = keys
        self._jobs = jobs
        self._keeper = Keeper(client)
        self._desk = Desk(keys, self._keeper, find=self._find)

    async def run(self) -> None:
        """Serve until cancelled; raises :class:`MachineError` where the address is not free."""
        # aiohttp is not needed by an operator that serves nothing.
        from danlu.kube.receiving import serve_requests

        async with (
            anyio.create_task_group() as group,
            serve_requests(
                self._address,
                self._desk.take,
                certificate=self._keys.certificate,
                most=MOST,
                too_large=TOO_LARGE,
            ) as self.port,
        ):
            group.start_soon(self._keeper.run)
            await anyio.sleep_forever()

    def _find(self, key: Key) -> Iterable[Reporter]:
        for resource, informer in self._jobs.items():
            job = informer.store.get(key)
            if job is not None and asked_for(job.metadata.annotations):
                yield Reporter(resource.kind, key, job.metadata.uid)
