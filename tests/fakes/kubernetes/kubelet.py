"""A simulated kubelet: runs the pods of an API server, fake or real, by a script."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import anyio

from danlu.kube.client import Client
from danlu.kube.clock import REAL_CLOCK, Clock
from danlu.kube.config import ClusterConfig
from danlu.kube.controller import Controller, ReconcileResult, Success, map_to_self
from danlu.kube.errors import AlreadyExists, Conflict, NotFound
from danlu.kube.informer import Informer
from danlu.kube.patch import merge_patch
from danlu.kube.resources import NODES, PODS
from danlu.kube.types import Key
from danlu.kube.watch import ALL_OBJECTS, ListOptions
from tests.fakes.kubernetes.container_logs import ContainerLogs
from tests.fakes.kubernetes.log_server import kubelet_server
from tests.fakes.kubernetes.pod_lifecycle import PodSimulator
from tests.fakes.kubernetes.pod_script import PodBehaviour, SimulatedPod, run_forever

__all__ = ["FakeKubelet"]

_PODS = PODS.with_model(SimulatedPod)


class FakeKubelet:
    """Watches the pods of a server and simulates their runs; an async context manager.

    ``behaviour`` returns the script of each pod: Pending, Running with an address, then Succeeded
    or Failed with exit code and termination message, after the seconds of ``clock`` in the script.
    Restart policies are obeyed, in place and with the back-off of a kubelet (0, 10, 20 … 300
    seconds). A deleted pod ends: its last status is written, then it is removed. If someone else
    ends a pod (a test that evicts it), its status is left alone.

    Pods are first bound to a node of this name, which is created. Without ``binds``, the kubelet
    waits for pods of a server with a scheduler, and runs those that have no node yet. At most
    ``connections`` requests are made at once.

    Logs of containers go to ``logs``, by default those of a fake (``fake.cluster.logs``), which
    then serves them. For a real server, the kubelet serves them itself, using the program
    ``openssl``.
    """

    def __init__(
        self,
        access: ClusterConfig,
        *,
        behaviour: PodBehaviour = run_forever,
        clock: Clock = REAL_CLOCK,
        selection: ListOptions = ALL_OBJECTS,
        node: str = "simulated",
        binds: bool = True,
        back_off: float = 10.0,
        connections: int = 16,
        logs: ContainerLogs | None = None,
    ) -> None:
        self.node = node
        self.logs = logs or ContainerLogs()
        self._serves = logs is None and access.server.startswith("https:")
        self._clock = clock
        self._binds = binds
        self._client = Client(access, clock=clock, connections=connections + 1, manager="kubelet")
        self._pods = Informer(self._client, _PODS, selection)
        self._controller: Controller[SimulatedPod] = Controller(
            "kubelet", self._reconcile_pod, workers=connections, clock=clock
        )
        self._controller.watch(self._pods, map_to_self)
        self._player = PodSimulator(
            self._client,
            behaviour=behaviour,
            node=node if binds else "",
            back_off=back_off,
            logs=self.logs,
        )

    async def __aenter__(self) -> FakeKubelet:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._client)
            port = 0
            if self._serves:
                served = kubelet_server(self.logs, self._player.find_run, self._clock.now)
                port = await stack.enter_async_context(served)
            if self._binds:
                await self._make_node(port)
            group = await stack.enter_async_context(anyio.create_task_group())
            stack.callback(group.cancel_scope.cancel)
            group.start_soon(self._pods.run)
            group.start_soon(self._controller.run)
            await self._pods.wait_for_cache_sync()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def write_log(self, namespace: str, name: str, data: bytes, *, container: str = "") -> None:
        """Have a container of a pod (the first by default) write ``data``.

        Raises :class:`KeyError` for a pod that the kubelet does not have yet.
        """
        key = Key(namespace, name)
        life, pod = self._player.lives[key], self._pods.indexer.get(key)
        if pod is None:
            raise KeyError(name)
        self._player.write_log(pod, life, data, container)

    async def _make_node(self, port: int) -> None:
        status: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "True"}]}
        if port:
            status["addresses"] = [{"type": "InternalIP", "address": "127.0.0.1"}]
            status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": port}}
        node = NODES.to_manifest({"metadata": {"name": self.node}, "status": status})
        try:
            await self._client.create(NODES, node)
        except AlreadyExists:
            patch = merge_patch({"status": status})
            await self._client.patch(NODES, self.node, patch, subresource="status")

    # One pod

    async def _reconcile_pod(self, key: Key) -> ReconcileResult:
        pod = self._pods.indexer.get(key)
        if pod is None or pod.spec.node_name not in ("", self.node):
            self._player.lives.pop(key, None)
            return Success()
        try:
            return await self._player.step(pod)
        except (NotFound, Conflict):
            # Gone, or replaced by a pod of the same name: wait for the informer.
            return Success()
