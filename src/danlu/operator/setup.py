"""Set up the operator: the manager with its controllers, and the services next to them."""

from __future__ import annotations

import signal
import socket
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import anyio

from danlu.kube.client import Client
from danlu.kube.clock import Clock
from danlu.kube.config import ClusterConfig
from danlu.kube.events import EventRecorder
from danlu.kube.leader import LeaderElection
from danlu.kube.manager import Manager
from danlu.kube.metrics import MetricsRegistry, RequestMetrics, register_process_metrics
from danlu.operator.controllers import ControllerSet
from danlu.operator.pod_decorators import open_decorators
from danlu.operator.progress.credentials import (
    ServerCredentials,
    load_or_create_credentials,
    resolve_reports_url,
)
from danlu.operator.progress.injection import ProgressInjector
from danlu.operator.progress.server import ReportServer
from danlu.operator.stored_versions import check_stored_versions
from danlu.operator.submitter_lease import add_submitter_lease_controller
from danlu.operator.types import OperatorSettings, PodDecorator, job_resource
from danlu.training.registry import list_kinds
from danlu.util.exception_groups import unwrap_group


@dataclass(frozen=True)
class OperatorServices:
    """What must exist before the first pod is created."""

    decorators: tuple[PodDecorator, ...] = ()
    credentials: ServerCredentials | None = None
    """The credentials of the report server; None if progress reports are not enabled."""


@asynccontextmanager
async def open_services(
    client: Client, settings: OperatorSettings, *, namespace: str
) -> AsyncIterator[OperatorServices]:
    """Open the pod decorators and load the credentials of the report server.

    ``namespace`` is the operator's own. Raises :class:`UsageError` for invalid URLs and CAs, and
    :class:`MachineError` if no certificate can be created.
    """
    credentials: ServerCredentials | None = None
    injectors: tuple[PodDecorator, ...] = ()
    if settings.reports_address:
        url = resolve_reports_url(settings.reports_address, settings.reports_url)
        credentials = await load_or_create_credentials(client, namespace, url=url)
        injectors = (ProgressInjector(client, credentials, url=url),)
    async with open_decorators(settings.decorators) as decorators:
        yield OperatorServices((*injectors, *decorators), credentials)


def build_manager(
    client: Client,
    settings: OperatorSettings,
    *,
    clock: Clock | None = None,
    recorder: EventRecorder | None = None,
    decorators: Sequence[PodDecorator] = (),
    services: OperatorServices | None = None,
    metrics: MetricsRegistry | None = None,
    election: LeaderElection | None = None,
) -> Manager:
    """Return a manager with a controller for every enabled kind; nothing runs yet.

    Args:
        recorder: If None, one is created and run by the manager.
        decorators: Run after those of ``services``.
        services: If given, submitter leases and the report server are added too.

    Raises:
        UsageError: An enabled kind is unknown.
    """
    manager = Manager(
        client,
        metrics=metrics,
        election=election,
        metrics_address=settings.metrics_address,
        health_address=settings.health_address,
    )
    if recorder is None:
        recorder = EventRecorder(client, "danlu-operator", busy=lambda: manager.busy)
        manager.add_runnable(recorder.run)
        manager.add_drain(recorder.drain)
    clock = clock or client.clock
    if services is not None:
        decorators = (*services.decorators, *decorators)
    controllers = ControllerSet(
        manager, settings, clock=clock, recorder=recorder, decorators=decorators
    )
    jobs = {
        job_resource(framework): controllers.add_kind(framework)
        for framework in list_kinds(settings.kinds, settings.versions)
    }
    if services is not None:
        add_submitter_lease_controller(manager, jobs, namespace=settings.namespace, clock=clock)
        if services.credentials is not None:
            address = settings.reports_address
            server = ReportServer(client, address, services.credentials, jobs)
            manager.add_runnable(server.run)
    return manager


async def run_operator(config: ClusterConfig, settings: OperatorSettings) -> None:
    """Run the operator until SIGTERM or SIGINT, then shut down gracefully.

    Raises:
        LeadershipLost: Another operator may be the leader now.
        OutsideError: The caches could not be synced, or the cluster has jobs of another version.
    """
    metrics = MetricsRegistry()
    register_process_metrics(metrics)
    client = Client(
        config,
        rate=settings.rate,
        burst=max(1, settings.burst),
        meter=RequestMetrics(metrics, urlsplit(config.server).netloc),
        manager="danlu-operator",
    )
    namespace = settings.lease_namespace or config.namespace
    async with client, open_services(client, settings, namespace=namespace) as services:
        await check_stored_versions(client, list_kinds(settings.kinds, settings.versions))
        election = None
        if settings.leader_elect:
            election = LeaderElection(
                client,
                name=settings.lease_name,
                namespace=namespace,
                identity=f"{socket.gethostname()}_{uuid.uuid4()}",
            )
        manager = build_manager(
            client, settings, services=services, metrics=metrics, election=election
        )
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_stop_on_signals, manager)
                await manager.run()
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise unwrap_group(errors) from errors


async def _stop_on_signals(manager: Manager) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            manager.stop()
