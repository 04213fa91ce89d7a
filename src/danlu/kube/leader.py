"""Leader election by a Lease, with the rules and the default times of client-go.

The guarantee is that of client-go (tools/leaderelection): two processes never lead at the same time
as long as their clock rates differ by less than lease duration / renew deadline. Timestamps of
other machines are never compared with ours; what counts is when we saw the record change.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import anyio
import msgspec

from danlu.errors import DanluError, OutsideError
from danlu.kube.client import Client
from danlu.kube.clock import move_on_after, sleep
from danlu.kube.errors import AlreadyExists, Conflict, NotFound
from danlu.kube.resources import LEASES
from danlu.kube.types import Object

_log = logging.getLogger(__name__)
_JITTER = 1.2


class LeadershipLost(OutsideError):
    """The lease was not renewed in time. Another process may lead now, so this one must stop."""


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The holder of a lease (coordination.k8s.io/v1 LeaseSpec)."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int = 0


class Lease(Object, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """A Lease (coordination.k8s.io/v1)."""

    spec: LeaseSpec = LeaseSpec()


_LEASES = LEASES.with_model(Lease)


@dataclass(frozen=True, slots=True)
class _ObservedRecord:
    lease: Lease
    at: float


class LeaderElection:
    """A candidate for the Lease ``name``; candidates must differ in ``identity``.

    The leader renews the lease every ``retry`` seconds, and stops leading if it could not for
    ``renew`` seconds. Others take over if the record has not changed for ``duration`` seconds. A
    leader that shuts down gracefully releases the lease at once.
    """

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        namespace: str,
        identity: str,
        duration: float = 15.0,
        renew: float = 10.0,
        retry: float = 2.0,
        draw: Callable[[], float] = random.random,
    ) -> None:
        if not duration > renew > retry * _JITTER:
            raise ValueError("must hold: duration > renew > 1.2 × retry")
        self.identity = identity
        self.is_leader = False
        self._client = client
        self._clock = client.clock
        self._namespace = namespace
        self._name = name
        self._duration = duration
        self._renew = renew
        self._retry = retry
        self._draw = draw
        self._observed: _ObservedRecord | None = None
        # Whether the lease can be renewed without reading it first.
        self._is_current = False

    @property
    def leader(self) -> str:
        """The identity of the last observed leader; empty before the first."""
        return self._observed.lease.spec.holder_identity if self._observed else ""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Acquire the lease, run ``lead`` while renewing it, and release it at the end.

        If the lease is lost, cancels ``lead`` and raises :class:`LeadershipLost`.
        """
        await self._acquire_lease()
        lost = False
        try:
            async with anyio.create_task_group() as group:

                async def run_lead() -> None:
                    await lead()
                    group.cancel_scope.cancel()

                group.start_soon(run_lead)
                await self._renew_until_lost()
                lost = True
                group.cancel_scope.cancel()
        finally:
            self.is_leader = False
            # Only after `lead` has ended: a released lease is acquired by another process at once.
            if not lost:
                await self._release_lease()
        if lost:
            raise LeadershipLost(
                f"{self.identity} could not renew lease {self._name} within {self._renew:.0f} s"
            )

    async def _acquire_lease(self) -> None:
        while not await self._try_acquire_or_renew():
            # With jitter, so that not all candidates ask at the same moment.
            await sleep(self._clock, self._retry * (1.0 + _JITTER * self._draw()))
        self.is_leader = True
        _log.info("%s became leader", self.identity)

    async def _renew_until_lost(self) -> None:
        while True:
            await sleep(self._clock, self._retry)
            renewed = False
            # Less than the lease's duration: this process stops leading before another one begins.
            with move_on_after(self._clock, self._renew):
                while not renewed:
                    renewed = await self._try_acquire_or_renew()
                    if not renewed:
                        await sleep(self._clock, self._retry)
            if not renewed:
                return

    async def _try_acquire_or_renew(self) -> bool:
        try:
            with move_on_after(self._clock, self._renew):
                return await self._acquire_or_renew()
        except (AlreadyExists, Conflict):
            _log.info("lease %s: another candidate was faster", self._name)
        except DanluError as error:
            _log.warning("lease %s: %s", self._name, error)
        self._is_current = False
        return False

    async def _acquire_or_renew(self) -> bool:
        if not (self.is_leader and self._is_current):
            try:
                lease = await self._client.get(_LEASES, self._name, namespace=self._namespace)
                self._observe_lease(lease)
            except NotFound:
                lease = await self._client.create(_LEASES, self._lease_manifest(None))
                self._observe_lease(lease)
                return True
        assert self._observed is not None
        lease = self._observed.lease
        mine = lease.spec.holder_identity == self.identity
        if not mine and lease.spec.holder_identity and not self._lease_ran_out():
            return False
        if self.is_leader and not mine:
            # Another process held the lease meanwhile, so the previous term is over even if the
            # lease could be acquired again.
            return False
        self._observe_lease(await self._client.update(_LEASES, self._lease_manifest(lease)))
        return True

    def _observe_lease(self, lease: Lease) -> None:
        self._is_current = True
        # The time of the first sight of a record counts, so that reading it again, unchanged, does
        # not prolong the lease of a dead leader.
        if self._observed is not None and self._observed.lease.spec == lease.spec:
            self._observed = _ObservedRecord(lease, self._observed.at)
        else:
            self._observed = _ObservedRecord(lease, self._clock.monotonic())

    def _lease_ran_out(self) -> bool:
        assert self._observed is not None
        duration = self._observed.lease.spec.lease_duration_seconds or self._duration
        return self._clock.monotonic() >= self._observed.at + duration

    def _lease_manifest(self, lease: Lease | None, *, release: bool = False) -> dict[str, Any]:
        now = _format_time(self._clock.now())
        old = lease.spec if lease is not None else LeaseSpec()
        acquired = old.acquire_time if old.holder_identity == self.identity else None
        changes_holder = lease is not None and acquired is None
        spec: dict[str, Any] = {
            "holderIdentity": "" if release else self.identity,
            # 0 is invalid; client-go writes 1 as well.
            "leaseDurationSeconds": 1 if release else int(self._duration),
            "acquireTime": _format_time(acquired) if acquired and not release else now,
            "renewTime": now,
            "leaseTransitions": old.lease_transitions + int(changes_holder),
        }
        metadata = {"name": self._name, "namespace": self._namespace}
        if lease is not None:
            metadata["resourceVersion"] = lease.metadata.resource_version
        return LEASES.to_manifest({"metadata": metadata, "spec": spec})

    async def _release_lease(self) -> None:
        if self._observed is None or self.leader != self.identity:
            return
        # Otherwise the others wait until the lease has expired.
        with anyio.CancelScope(shield=True), anyio.move_on_after(self._retry):
            try:
                manifest = self._lease_manifest(self._observed.lease, release=True)
                self._observe_lease(await self._client.update(_LEASES, manifest))
            except DanluError as error:
                _log.info("lease %s: not released: %s", self._name, error)


def _format_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
