"""Many controllers over one shared cache, started in order and stopped without haste."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any

import anyio

from danlu.errors import OutsideError
from danlu.kube.client import EVERYWHERE, Client, Selection
from danlu.kube.clock import within
from danlu.kube.controller import Controller
from danlu.kube.informer import Informer
from danlu.kube.leader import LeaderElection
from danlu.kube.meters import ControllerMeters
from danlu.kube.metrics import Metrics
from danlu.kube.resources import Resource
from danlu.kube.serving import health_routes, metrics_routes, serve
from danlu.kube.store import Index, O

__all__ = ["Manager"]

_log = logging.getLogger(__name__)


class Manager:
    """Runs controllers.

    Order: the addresses answer; informers begin and are waited for, ``sync_seconds`` at most, so
    that a stand-by has all it needs; with ``election`` it is waited for to lead; then all
    controllers work. :meth:`stop` ends it the other way round: queues take no more keys, what is
    ready or under way is finished, for ``grace`` seconds at most, the lease is given back, and then
    all ends.

    ``metrics_address`` and ``health_address`` are ``HOST:PORT``, or empty for none.
    """

    def __init__(
        self,
        client: Client,
        *,
        metrics: Metrics | None = None,
        election: LeaderElection | None = None,
        metrics_address: str = "",
        health_address: str = "",
        sync_seconds: float = 120.0,
        grace: float = 30.0,
    ) -> None:
        self.client = client
        self.metrics = metrics or Metrics()
        self.ports: dict[str, int] = {}
        self._election = election
        self._addresses = {"metrics": metrics_address, "health": health_address}
        self._sync_seconds = sync_seconds
        self._grace = grace
        self._informers: dict[tuple[str, Selection], Informer[Any]] = {}
        self._controllers: list[Controller[Any]] = []
        self._background: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._meters = ControllerMeters(self.metrics, client.clock)
        self._stopping = anyio.Event()
        self._leading_metric()

    def informer(
        self,
        resource: Resource[O],
        selection: Selection = EVERYWHERE,
        *,
        indexes: Mapping[str, Index] | None = None,
    ) -> Informer[O]:
        """The one informer of a kind and selection, with these indexes too.

        Raises :class:`ValueError` where another asked for it as another type, and after the start.
        """
        found = self._informers.get((resource.label, selection))
        if found is None:
            found = Informer(self.client, resource, selection, indexes=indexes)
            self._informers[resource.label, selection] = found
        elif found.resource != resource:
            raise ValueError(f"{resource.label} is decoded as {found.resource.model} already")
        elif indexes:
            found.store.add_indexes(indexes)
        return found

    def add(self, controller: Controller[Any]) -> None:
        """Run a controller too; before the start."""
        if any(one.name == controller.name for one in self._controllers):
            raise ValueError(f"there is a controller {controller.name} already")
        self._controllers.append(controller)
        self._meters.add(controller)

    def background(self, task: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a task beside the informers, leading or not; cancelled when controllers are done."""
        self._background.append(task)

    def stop(self) -> None:
        """End :meth:`run`, in order."""
        self._stopping.set()

    @property
    def not_ready(self) -> str:
        """Why it is not ready; empty where it is."""
        behind = [name for (name, _), one in self._informers.items() if not one.synced]
        return f"not synced: {', '.join(sorted(behind))}" if behind else ""

    async def run(self) -> None:
        """Run until stopped.

        Raises :class:`OutsideError` where the caches cannot be filled in time, and
        :class:`~danlu.kube.leader.LeadershipLost`.
        """
        async with AsyncExitStack() as stack:
            await self._open(stack)
            async with anyio.create_task_group() as group:
                for informer in self._informers.values():
                    group.start_soon(informer.run)
                for task in self._background:
                    group.start_soon(task)
                await self._until_stopped(self._work)
                group.cancel_scope.cancel()

    async def _open(self, stack: AsyncExitStack) -> None:
        routes = {"metrics": metrics_routes(self.metrics)}
        routes["health"] = health_routes(lambda: self.not_ready)
        for name, address in self._addresses.items():
            if address:
                self.ports[name] = await stack.enter_async_context(serve(address, routes[name]))

    async def _until_stopped(self, work: Any) -> None:
        """Run ``work``; a stop before controllers began has nothing to wait for."""
        await self._sync()
        if self._stopping.is_set():
            return
        if self._election is None:
            await work()
            return
        async with anyio.create_task_group() as group:

            async def give_up_waiting() -> None:
                await self._stopping.wait()
                if self._election is not None and not self._election.leads:
                    group.cancel_scope.cancel()

            group.start_soon(give_up_waiting)
            await self._election.run(work)
            group.cancel_scope.cancel()

    async def _sync(self) -> None:
        with within(self.client.clock, self._sync_seconds) as scope:
            async with anyio.create_task_group() as group:

                async def give_up() -> None:
                    await self._stopping.wait()
                    group.cancel_scope.cancel()

                group.start_soon(give_up)
                for informer in self._informers.values():
                    await informer.wait_synced()
                group.cancel_scope.cancel()
        if scope.cancel_called and self.not_ready:
            raise OutsideError(
                f"{self.not_ready} after {self._sync_seconds:.0f} s",
                hint="may the operator list and watch these? are their definitions installed?",
            )

    async def _work(self) -> None:
        async with anyio.create_task_group() as group:
            for controller in self._controllers:
                group.start_soon(controller.run)
            _log.info("%d controllers work", len(self._controllers))
            await self._stopping.wait()
            with within(self.client.clock, self._grace):
                async with anyio.create_task_group() as draining:
                    for controller in self._controllers:
                        draining.start_soon(controller.queue.drain)
            group.cancel_scope.cancel()

    def _leading_metric(self) -> None:
        election = self._election
        if election is not None:
            self.metrics.gauge(
                "leader_election_master_status",
                "Whether this one leads",
                "name",
                read=lambda: [((election.identity,), float(election.leads))],
            )
