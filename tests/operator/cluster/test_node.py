"""The cluster itself, which other tests depend on."""

from __future__ import annotations

import pytest

from danlu.kube.client import Client
from danlu.kube.resources import PODS, SERVICES
from danlu.kube.transport import ApiRequest
from danlu.kube.watch import ListOptions
from tests.kube.objects import eventually
from tests.operator.cluster.conftest import RunningCluster
from tests.operator.cluster.images import PAUSE

FIND = """\
until busybox wget -q -O /got http://found/busybox; do busybox sleep 1; done
busybox wc -c < /got"""

pytestmark = [pytest.mark.anyio, pytest.mark.real]


async def test_a_pod_runs_and_finds_another_by_the_name_of_its_service(
    cluster: RunningCluster, client: Client
) -> None:
    service = {"clusterIP": "None", "selector": {"app": "found"}, "ports": [{"port": 80}]}
    metadata = {"name": "found", "namespace": "default", "labels": {"app": "found"}}
    await client.create(SERVICES, SERVICES.to_manifest({"metadata": metadata, "spec": service}))
    for name, command in (
        ("found", "busybox httpd -f -p 80"),
        ("finds", FIND),
    ):
        container = {
            "name": "main",
            "image": PAUSE,
            "imagePullPolicy": "Never",
            "command": ["/busybox", "sh", "-c", command.replace("busybox ", "/busybox ")],
        }
        spec = {"containers": [container], "restartPolicy": "Never"}
        pod = {"metadata": {"name": name, "namespace": "default", "labels": {"app": name}}}
        await client.create(PODS, PODS.to_manifest({**pod, "spec": spec}))

    async def pod_is_done() -> bool:
        result = await client.list(PODS, ListOptions("default", labels="app=finds"))
        phase = result.items[0]["status"].get("phase")
        assert phase != "Failed", result.items[0]["status"]
        return bool(phase == "Succeeded")

    await eventually(pod_is_done, seconds=60)
    path = PODS.path(namespace="default", name="finds", subresource="log")
    log = await client.transport.send(ApiRequest(method="GET", path=path))
    # Before it: what wget said as long as nobody answered.
    assert int(log.split()[-1]) > 100_000, log
