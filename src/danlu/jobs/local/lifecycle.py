"""Lifecycle hooks, startup and liveness probes of a container, with the rules of the kubelet.

A preStop hook runs before the stop signal; its time counts towards the grace period, of which the
program gets at least two seconds. A postStart hook that fails, or a probe that fails several times,
stops the container; its exit then counts as any other. Handlers are programs in the container
(``exec``) or a ``sleep``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import anyio
import msgspec

from danlu.engine.types import RunningContainer
from danlu.errors import DanluError
from danlu.jobs.local.pod import ReplicaContainer, ReplicaEngine
from danlu.sandbox.types import ContainerExit

#: What a program gets of a grace period that its hook has used up (kubelet's
#: ``minimumGracePeriodInSeconds``).
_MIN_GRACE_SECONDS = 2.0


class ManagedContainer:
    """A started container with its hooks and its probes.

    ``failure`` is why one of them stopped it, or empty.
    """

    def __init__(
        self, running: RunningContainer, spec: ReplicaContainer, engine: ReplicaEngine
    ) -> None:
        self.running = running
        self.failure = ""
        self._spec = spec
        self._engine = engine
        self._ended = False
        self._pre_stop_ended: anyio.Event | None = None

    async def watch(self, *, grace: float) -> None:
        """Run the postStart hook, then probe, until the container has ended."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._run_checks, grace)
            await self.running.wait()
            self._ended = True
            group.cancel_scope.cancel()

    async def _run_checks(self, grace: float) -> None:
        limit = None
        problem = await self._run_handler(self._spec.post_start, None)
        if problem:
            self.failure = f"postStart hook failed: {problem}"
        for kind, probe in self._spec.probes.items():
            if not self.failure:
                self.failure = await self._run_probe(kind, probe)
                limit = probe.get("terminationGracePeriodSeconds")
        if self.failure:
            await self.stop(grace=grace if limit is None else limit)

    async def wait(self) -> ContainerExit:
        """Return how the container ended, with the failure that stopped it as the message."""
        exit = await self.running.wait()
        self._ended = True
        return msgspec.structs.replace(exit, message=self.failure) if self.failure else exit

    async def stop(self, *, grace: float) -> None:
        """Run the preStop hook, then stop the container, in ``grace`` seconds together.

        A second call may shorten the time of a first one that is still in progress.
        """
        begun = time.monotonic()
        if grace > 0 and self._spec.pre_stop and not self._ended:
            with anyio.move_on_after(grace):
                if self._pre_stop_ended is None:
                    self._pre_stop_ended = anyio.Event()
                    try:
                        await self._run_handler(self._spec.pre_stop, None)
                    finally:
                        self._pre_stop_ended.set()
                else:
                    await self._pre_stop_ended.wait()
            grace = max(grace - (time.monotonic() - begun), _MIN_GRACE_SECONDS)
        await self.running.stop(grace=grace)

    async def _run_probe(self, kind: str, probe: Mapping[str, Any]) -> str:
        """Return why the container must be stopped; empty when a ``startup`` probe has succeeded.

        A ``liveness`` probe that succeeds never ends.
        """
        failures = 0
        await anyio.sleep(probe.get("initialDelaySeconds") or 0)
        while True:
            problem = await self._run_handler(probe, probe.get("timeoutSeconds") or 1)
            if kind == "startup" and not problem:
                return ""
            failures = failures + 1 if problem else 0
            if failures >= (probe.get("failureThreshold") or 3):
                return f"{kind} probe failed: {problem}"
            await anyio.sleep(probe.get("periodSeconds") or 10)

    async def _run_handler(self, handler: Mapping[str, Any] | None, limit: float | None) -> str:
        """Run a handler for at most ``limit`` seconds; return why it failed, or empty."""
        if not handler:
            return ""
        if sleep := handler.get("sleep"):
            await anyio.sleep(sleep.get("seconds") or 0)
        if not handler.get("exec"):
            return ""
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            args = tuple(map(str, handler["exec"].get("command") or ()))
            program = await self._engine.exec(self.running, args, (null, null, null))
        except (DanluError, OSError) as error:
            return str(error)
        finally:
            os.close(null)
        exit: ContainerExit | None = None
        try:
            with anyio.move_on_after(limit):
                exit = await program.wait()
        finally:
            if exit is None:
                await program.stop(grace=0)
        if exit is None:
            return f"{args[0]} did not end in {limit:g} s"
        return exit.message or f"exit code {exit.code}" if exit.code else ""
