"""Ties of jobs to this process: Leases that a thread renews for as long as it lives.

A thread and not a task, for whoever submits a job has event loops that come and go, and may itself
compute for minutes. Nothing is done at the end: a Lease that is renewed no more is the message.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import anyio

from danlu.errors import DanluError
from danlu.jobs.kubernetes.sending import LEASE_SECONDS
from danlu.kube.access import Access
from danlu.kube.client import Client
from danlu.kube.failures import NotFound
from danlu.kube.patches import merge_patch
from danlu.kube.resources import LEASES
from danlu.kube.types import Key

__all__ = ["Ties"]

_EVERY = LEASE_SECONDS / 3

_log = logging.getLogger(__name__)


class Ties:
    """The Leases on one cluster that this process holds; the thread ends with the last of them."""

    def __init__(
        self, access: Access, *, every: float = _EVERY, wait: Callable[[float], object] = time.sleep
    ) -> None:
        self._access = access
        self._every = every
        self._wait = wait
        self._held: set[Key] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def hold(self, namespace: str, name: str) -> None:
        """Renew a Lease that is there until it is gone."""
        with self._lock:
            self._held.add(Key(namespace, name))
            if self._thread is None:
                # A daemon: it must not keep the process that it stands for.
                self._thread = threading.Thread(target=self._run, name="danlu ties", daemon=True)
                self._thread.start()

    def release(self, namespace: str, name: str) -> None:
        """Renew it no more."""
        with self._lock:
            self._held.discard(Key(namespace, name))

    @property
    def held(self) -> frozenset[Key]:
        """What is renewed now."""
        with self._lock:
            return frozenset(self._held)

    def _run(self) -> None:
        while True:
            self._wait(self._every)
            with self._lock:
                if not self._held:
                    self._thread = None
                    return
            anyio.run(self._renew_all)

    async def _renew_all(self) -> None:
        try:
            async with Client(self._access, connections=4, manager="danlu") as client:
                with anyio.move_on_after(self._every):
                    for key in self.held:
                        await self._renew(client, key)
        except DanluError as error:
            # The next time may do, and several fit into what a Lease lasts.
            _log.warning("a job's tie was not renewed: %s", error)

    async def _renew(self, client: Client, key: Key) -> None:
        renewed = f"{client.clock.now():%Y-%m-%dT%H:%M:%S.%fZ}"
        patch = merge_patch({"spec": {"renewTime": renewed}})
        try:
            await client.patch(LEASES, key.name, patch, namespace=key.namespace)
        except NotFound:
            # Its job was removed, and it with that.
            self.release(*key)
