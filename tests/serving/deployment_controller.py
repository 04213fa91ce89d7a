"""A simulated deployment controller: first pods of the latest template, then no others."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import msgspec

from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig
from danlu.kube.errors import ApiError, NotFound
from danlu.kube.patch import merge_patch
from danlu.kube.resources import DEPLOYMENTS, PODS
from danlu.kube.watch import ListOptions

_SPACE = "default"


@asynccontextmanager
async def run_deployments(
    access: ClusterConfig, *, can_serve: Callable[[], bool] = lambda: True
) -> AsyncIterator[None]:
    """Reconcile the Deployments of the namespace ``default``.

    Running pods count as available while ``can_serve``: a kubelet's probes are not simulated.
    """
    async with Client(access, manager="deployments") as client, anyio.create_task_group() as group:
        group.start_soon(_run, client, can_serve)
        yield
        group.cancel_scope.cancel()


async def _run(client: Client, can_serve: Callable[[], bool]) -> None:
    while True:
        deployments = (await client.list(DEPLOYMENTS, ListOptions(_SPACE))).items
        with suppress(ApiError):
            for deployment in deployments:
                await _reconcile(client, deployment, can_serve=can_serve())
        await anyio.sleep(0.02)


async def _reconcile(client: Client, deployment: dict[str, Any], *, can_serve: bool) -> None:
    metadata, spec = deployment["metadata"], deployment["spec"]
    template, wanted = spec["template"], spec.get("replicas", 1)
    digest = hashlib.sha256(msgspec.json.encode(template, order="sorted")).hexdigest()[:8]
    (label,) = spec["selector"]["matchLabels"].items()
    selection = ListOptions(_SPACE, labels="=".join(label))
    pods = [
        pod
        for pod in (await client.list(PODS, selection)).items
        if "deletionTimestamp" not in pod["metadata"]
    ]
    latest = [pod for pod in pods if f"-{digest}-" in pod["metadata"]["name"]]
    earlier = [pod for pod in pods if pod not in latest]
    for number in range(wanted):
        name = f"{metadata['name']}-{digest}-{number}"
        if not any(pod["metadata"]["name"] == name for pod in latest):
            document = {"metadata": {**template["metadata"], "name": name, "namespace": _SPACE}}
            await client.create(PODS, PODS.to_manifest({**document, "spec": template["spec"]}))
    if can_serve and len(list(filter(_is_ready, latest))) >= wanted:
        for pod in [*earlier, *latest[wanted:]]:
            with suppress(NotFound):
                await client.delete(PODS, pod["metadata"]["name"], namespace=_SPACE)
    status = {
        "observedGeneration": metadata.get("generation", 0),
        "replicas": len(pods),
        "updatedReplicas": len(latest),
        "availableReplicas": sum(map(_is_ready, pods)) if can_serve else 0,
    }
    if {**deployment.get("status", {}), **status} != deployment.get("status"):
        await client.patch(
            DEPLOYMENTS,
            metadata["name"],
            merge_patch({"status": status}),
            namespace=_SPACE,
            subresource="status",
        )


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions: Sequence[dict[str, str]] = pod.get("status", {}).get("conditions") or ()
    return any((item["type"], item["status"]) == ("Ready", "True") for item in conditions)
