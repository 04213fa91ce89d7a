"""One of several acts: leader election by a Lease, with client-go's rules and times.

What it guarantees is what client-go's does (tools/leaderelection): no two lead while clocks run at
rates that differ by less than lease duration to renew deadline. Times of other machines are never
compared with ours: what counts is when we saw the record change.
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
from danlu.kube.clock import sleep, within
from danlu.kube.failures import AlreadyExists, Conflict, NotFound
from danlu.kube.resources import LEASES
from danlu.kube.types import Object

__all__ = ["LeaderElection", "LeadershipLost", "Lease"]

_log = logging.getLogger(__name__)
_JITTER = 1.2


class LeadershipLost(OutsideError):
    """The lease could not be renewed in time: another may lead now, so nothing more may be done."""


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Who leads, and since when (coordination.k8s.io/v1 LeaseSpec)."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int = 0


class Lease(Object, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """The object of which one is the holder."""

    spec: LeaseSpec = LeaseSpec()


_LEASES = LEASES.decoded(Lease)


@dataclass(frozen=True, slots=True)
class _Observed:
    lease: Lease
    at: float


class LeaderElection:
    """Candidates that share a Lease by ``name``; ``identity`` must differ among them.

    The holder renews every ``retry`` seconds and stops to lead when it could not for ``renew``
    seconds; others take over when the record has not changed for ``duration`` seconds. A holder
    that stops in order gives the lease back at once.
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
            raise ValueError("duration > renew > 1.2 × retry must hold")
        self.identity = identity
        self.leads = False
        self._client = client
        self._clock = client.clock
        self._place = (namespace, name)
        self._duration = duration
        self._renew = renew
        self._retry = retry
        self._draw = draw
        self._observed: _Observed | None = None
        # Whether the lease can be renewed without reading it first.
        self._certain = False

    @property
    def leader(self) -> str:
        """Who leads, as far as is known; empty for nobody."""
        return self._observed.lease.spec.holder_identity if self._observed else ""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Wait to become the leader, run ``lead``, and give the lease back when that has ended.

        Raises :class:`LeadershipLost`, with ``lead`` cancelled before, where it is lost.
        """
        await self._acquire()
        lost = False
        try:
            async with anyio.create_task_group() as group:

                async def leading() -> None:
                    await lead()
                    group.cancel_scope.cancel()

                group.start_soon(leading)
                await self._keep()
                lost = True
                group.cancel_scope.cancel()
        finally:
            self.leads = False
            if not lost:
                await self._release()
        if lost:
            raise LeadershipLost(
                f"{self.identity} could not renew the lease {self._place[1]} in {self._renew:.0f} s"
            )

    async def _acquire(self) -> None:
        while not await self._attempt():
            await sleep(self._clock, self._retry * (1.0 + _JITTER * self._draw()))
        self.leads = True
        _log.info("%s leads", self.identity)

    async def _keep(self) -> None:
        """Renew until that has failed for too long."""
        while True:
            await sleep(self._clock, self._retry)
            renewed = False
            with within(self._clock, self._renew):
                while not renewed:
                    renewed = await self._attempt()
                    if not renewed:
                        await sleep(self._clock, self._retry)
            if not renewed:
                return

    async def _attempt(self) -> bool:
        """Try to get or to keep the lease; failures are those of the moment."""
        try:
            with within(self._clock, self._renew):
                return await self._try()
        except (AlreadyExists, Conflict):
            _log.info("lease %s: another was faster", self._place[1])
        except DanluError as error:
            _log.warning("lease %s: %s", self._place[1], error)
        self._certain = False
        return False

    async def _try(self) -> bool:
        if not (self.leads and self._certain):
            try:
                await self._look()
            except NotFound:
                self._see(await self._client.create(_LEASES, self._document(None)))
                return True
        assert self._observed is not None
        lease = self._observed.lease
        mine = lease.spec.holder_identity == self.identity
        if not mine and lease.spec.holder_identity and not self._run_out():
            return False
        if self.leads and not mine:
            # Somebody took it: whoever led must not lead on as if it had never been away.
            return False
        self._see(await self._client.update(_LEASES, self._document(lease)))
        return True

    async def _look(self) -> None:
        namespace, name = self._place
        self._see(await self._client.get(_LEASES, name, namespace=namespace))

    def _see(self, lease: Lease) -> None:
        self._certain = True
        if self._observed is not None and self._observed.lease.spec == lease.spec:
            self._observed = _Observed(lease, self._observed.at)
        else:
            self._observed = _Observed(lease, self._clock.monotonic())

    def _run_out(self) -> bool:
        assert self._observed is not None
        duration = self._observed.lease.spec.lease_duration_seconds or self._duration
        return self._clock.monotonic() >= self._observed.at + duration

    def _document(self, lease: Lease | None, *, release: bool = False) -> dict[str, Any]:
        now = self._clock.now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = lease.spec if lease is not None else LeaseSpec()
        mine = old.holder_identity == self.identity and old.acquire_time is not None
        changed = lease is not None and not mine
        spec: dict[str, Any] = {
            "holderIdentity": "" if release else self.identity,
            "leaseDurationSeconds": 1 if release else int(self._duration),
            "acquireTime": _shown(old.acquire_time) if mine and not release else now,
            "renewTime": now,
            "leaseTransitions": old.lease_transitions + int(changed),
        }
        namespace, name = self._place
        metadata = {"name": name, "namespace": namespace}
        if lease is not None:
            metadata["resourceVersion"] = lease.metadata.resource_version
        return LEASES.document({"metadata": metadata, "spec": spec})

    async def _release(self) -> None:
        if self._observed is None or self.leader != self.identity:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(self._retry):
            try:
                document = self._document(self._observed.lease, release=True)
                self._see(await self._client.update(_LEASES, document))
            except DanluError as error:
                _log.info("lease %s not given back: %s", self._place[1], error)


def _shown(moment: datetime | None) -> str:
    assert moment is not None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
