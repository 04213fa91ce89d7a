"""The operator put together: one controller a kind, over one cache, in one manager."""

from __future__ import annotations

import signal
import socket
import uuid
from collections.abc import Sequence
from urllib.parse import urlsplit

import anyio

from danlu.errors import DanluError
from danlu.kube.access import Access
from danlu.kube.client import Client
from danlu.kube.events import EventRecorder
from danlu.kube.leader import LeaderElection
from danlu.kube.manager import Manager
from danlu.kube.meters import RequestMeter, process_metrics
from danlu.kube.metrics import Metrics
from danlu.kube.types import Clock
from danlu.operator.controllers import Controllers, job_resource
from danlu.operator.surroundings import Surroundings, surrounded
from danlu.operator.types import OperatorSettings, PodDecorator
from danlu.training.framework import Framework
from danlu.training.registry import framework_of, frameworks

__all__ = ["build", "enabled", "job_resource", "run"]


def enabled(settings: OperatorSettings) -> tuple[Framework, ...]:
    """The frameworks whose jobs are reconciled; raises UsageError for one that there is not."""
    if not settings.kinds:
        return frameworks()
    return tuple({one.kind: one for one in map(framework_of, settings.kinds)}.values())


def build(
    client: Client,
    settings: OperatorSettings,
    *,
    clock: Clock | None = None,
    recorder: EventRecorder | None = None,
    decorators: Sequence[PodDecorator] = (),
    surroundings: Surroundings | None = None,
    metrics: Metrics | None = None,
    election: LeaderElection | None = None,
) -> Manager:
    """A manager with a controller for every enabled kind; nothing runs yet.

    ``decorators`` come after those of ``surroundings``, whose ties and reports are added too.
    ``recorder`` is run by the manager where none is given. Raises :class:`UsageError` for kinds
    that there are not.
    """
    manager = Manager(
        client,
        metrics=metrics,
        election=election,
        metrics_address=settings.metrics_address,
        health_address=settings.health_address,
    )
    if recorder is None:
        recorder = EventRecorder(client, "danlu-operator")
        manager.background(recorder.run)
    clock = clock or client.clock
    if surroundings is not None:
        decorators = (*surroundings.decorators, *decorators)
    controllers = Controllers(
        manager, settings, clock=clock, recorder=recorder, decorators=decorators
    )
    jobs = {job_resource(one): controllers.add(one) for one in enabled(settings)}
    if surroundings is not None:
        surroundings.attach(manager, jobs, clock=clock)
    return manager


async def run(access: Access, settings: OperatorSettings) -> None:
    """Run the operator until SIGTERM or SIGINT, and end it in order.

    Raises :class:`danlu.kube.leader.LeadershipLost` where another may lead now, and
    :class:`OutsideError` where the cluster cannot be followed.
    """
    metrics = Metrics()
    process_metrics(metrics)
    client = Client(
        access,
        rate=settings.rate,
        burst=max(1, settings.burst),
        meter=RequestMeter(metrics, urlsplit(access.server).netloc),
        manager="danlu-operator",
    )
    own = settings.lease_namespace or access.namespace
    async with client, surrounded(client, settings, namespace=own) as surroundings:
        manager = build(
            client,
            settings,
            surroundings=surroundings,
            metrics=metrics,
            election=_election(client, settings, access),
        )
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_stopped_by_signals, manager)
                await manager.run()
                group.cancel_scope.cancel()
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors


def _election(client: Client, settings: OperatorSettings, access: Access) -> LeaderElection | None:
    if not settings.leader_elect:
        return None
    return LeaderElection(
        client,
        name=settings.lease_name,
        namespace=settings.lease_namespace or access.namespace,
        identity=f"{socket.gethostname()}_{uuid.uuid4()}",
    )


async def _stopped_by_signals(manager: Manager) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            manager.stop()


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong, out of the groups of the tasks in which it did."""
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        ours = found.subgroup(DanluError)
        found = (ours or found).exceptions[0]
    return found
