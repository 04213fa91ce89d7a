"""A manager: controllers over shared informers, started in order and shut down gracefully."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any

import anyio
from prometheus_client import Gauge

from danlu.errors import OutsideError
from danlu.kube.client import Client
from danlu.kube.clock import move_on_after
from danlu.kube.controller import Controller
from danlu.kube.http import health_routes, metrics_routes, serve
from danlu.kube.informer import IndexFunc, Informer, O
from danlu.kube.leader import LeaderElection
from danlu.kube.metrics import ControllerMetrics, MetricsRegistry
from danlu.kube.resources import Resource
from danlu.kube.watch import ALL_OBJECTS, ListOptions

_log = logging.getLogger(__name__)

Runnable = Callable[[], Coroutine[Any, Any, None]]


class Manager:
    """Runs controllers and what they share.

    Start: the HTTP endpoints; the informers, until their caches have synced, so that a stand-by is
    ready to take over; with ``election`` wait to become the leader; then all controllers.

    :meth:`stop` shuts down in reverse: the queues accept no more keys, ready keys are processed and
    drains run, for at most ``grace`` seconds; the lease is released; then everything ends.

    Args:
        metrics_address: ``HOST:PORT`` of ``/metrics``; empty for none.
        health_address: ``HOST:PORT`` of ``/healthz`` and ``/readyz``; empty for none.
        sync_seconds: How long the caches may take to sync.
    """

    def __init__(
        self,
        client: Client,
        *,
        metrics: MetricsRegistry | None = None,
        election: LeaderElection | None = None,
        metrics_address: str = "",
        health_address: str = "",
        sync_seconds: float = 120.0,
        grace: float = 30.0,
    ) -> None:
        self.client = client
        self.metrics = metrics or MetricsRegistry()
        self.ports: dict[str, int] = {}
        self._election = election
        self._addresses = {"metrics": metrics_address, "health": health_address}
        self._sync_seconds = sync_seconds
        self._grace = grace
        self._informers: dict[tuple[str, ListOptions], Informer[Any]] = {}
        self._controllers: list[Controller[Any]] = []
        self._runnables: list[Runnable] = []
        self._drains: list[Runnable] = []
        self._controller_metrics = ControllerMetrics(self.metrics, client.clock)
        self._stopping = anyio.Event()
        if election is not None:
            gauge = Gauge(
                "leader_election_master_status",
                "Whether this process is the leader",
                ["name"],
                registry=self.metrics,
            )
            gauge.labels(election.identity).set_function(lambda: float(election.is_leader))

    def get_informer(
        self,
        resource: Resource[O],
        options: ListOptions = ALL_OBJECTS,
        *,
        indexes: Mapping[str, IndexFunc] | None = None,
    ) -> Informer[O]:
        """Return the shared informer of a resource and selection, with these indexes.

        Raises :class:`ValueError` if the resource is already decoded as another type.
        """
        informer = self._informers.get((resource.display_name, options))
        if informer is None:
            informer = Informer(self.client, resource, options, indexes=indexes)
            self._informers[resource.display_name, options] = informer
        elif informer.resource != resource:
            raise ValueError(
                f"{resource.display_name} is already decoded as {informer.resource.model.__name__}"
            )
        elif indexes:
            informer.indexer.add_indexes(indexes)
        return informer

    def add_controller(self, controller: Controller[Any]) -> None:
        """Add a controller; only before :meth:`run`."""
        if any(existing.name == controller.name for existing in self._controllers):
            raise ValueError(f"controller {controller.name} already exists")
        self._controllers.append(controller)
        self._controller_metrics.add(controller)

    def add_runnable(self, task: Runnable) -> None:
        """Run a task as long as the informers, whether or not this process is the leader."""
        self._runnables.append(task)

    def add_drain(self, task: Runnable) -> None:
        """Run a task after the controllers have ended and before the lease is released."""
        self._drains.append(task)

    def stop(self) -> None:
        """Shut down gracefully, so that :meth:`run` returns."""
        self._stopping.set()

    @property
    def busy(self) -> bool:
        """Whether more keys of a controller are ready than it has workers."""
        return any(len(controller.queue) > controller.workers for controller in self._controllers)

    @property
    def unready_reason(self) -> str:
        """Which caches have not synced yet; empty if the manager is ready."""
        missing = sorted(
            name for (name, _), informer in self._informers.items() if not informer.has_synced
        )
        return f"caches not synced: {', '.join(missing)}" if missing else ""

    async def run(self) -> None:
        """Run until stopped.

        Raises:
            OutsideError: The caches did not sync in time.
            LeadershipLost: The lease could not be renewed.
        """
        async with AsyncExitStack() as stack:
            await self._open_servers(stack)
            async with anyio.create_task_group() as group:
                for informer in self._informers.values():
                    group.start_soon(informer.run)
                for task in self._runnables:
                    group.start_soon(task)
                await self._wait_for_sync()
                if not self._stopping.is_set():
                    await self._run_as_leader()
                group.cancel_scope.cancel()

    async def _open_servers(self, stack: AsyncExitStack) -> None:
        routes = {
            "metrics": metrics_routes(self.metrics),
            "health": health_routes(lambda: self.unready_reason),
        }
        for name, address in self._addresses.items():
            if address:
                self.ports[name] = await stack.enter_async_context(serve(address, routes[name]))

    async def _wait_for_sync(self) -> None:
        with move_on_after(self.client.clock, self._sync_seconds) as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(self._cancel_when_stopping, group.cancel_scope)
                for informer in self._informers.values():
                    await informer.wait_for_cache_sync()
                group.cancel_scope.cancel()
        if scope.cancel_called and self.unready_reason:
            raise OutsideError(
                f"{self.unready_reason} after {self._sync_seconds:.0f} s",
                hint="check that the CRDs are installed and that RBAC allows to list and watch",
            )

    async def _cancel_when_stopping(self, scope: anyio.CancelScope) -> None:
        await self._stopping.wait()
        scope.cancel()

    async def _run_as_leader(self) -> None:
        election = self._election
        if election is None:
            await self._run_controllers()
            return
        async with anyio.create_task_group() as group:

            async def stop_waiting_for_lease() -> None:
                await self._stopping.wait()
                # A leader must not be cancelled: it drains its queues and releases the lease.
                if not election.is_leader:
                    group.cancel_scope.cancel()

            group.start_soon(stop_waiting_for_lease)
            await election.run(self._run_controllers)
            group.cancel_scope.cancel()

    async def _run_controllers(self) -> None:
        async with anyio.create_task_group() as group:
            for controller in self._controllers:
                group.start_soon(controller.run)
            _log.info("started %d controllers", len(self._controllers))
            await self._stopping.wait()
            with move_on_after(self.client.clock, self._grace):
                async with anyio.create_task_group() as draining:
                    for controller in self._controllers:
                        draining.start_soon(controller.queue.drain)
                for task in self._drains:
                    await task()
            group.cancel_scope.cancel()
