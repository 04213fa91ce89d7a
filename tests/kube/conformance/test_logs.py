"""Pod logs through an API server: the fake, and a real one that asks our kubelet."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from danlu.kube.client import Client
from danlu.kube.errors import BadRequest
from danlu.kube.resources import PODS
from danlu.kube.transport import ApiRequest
from danlu.kube.watch import ListOptions
from tests.fakes.kubernetes import FakeKubelet, PodScript, SimulatedPod
from tests.kube.objects import eventually, pod
from tests.kube.servers import ApiServer

pytestmark = pytest.mark.anyio


def behaviour(pod: SimulatedPod) -> PodScript:
    """Chosen by the pod's name."""
    match pod.key.name:
        case "done":
            return PodScript(run=0, log="one\ntwo\nthree\n", message="bye")
        case "waits":
            return PodScript(waiting="ErrImagePull")
        case "fails":
            return PodScript(
                run=0 if pod.restarts == 0 else None, exit_code=1, log=f"{pod.restarts}\n"
            )
    return PodScript()


@pytest.fixture
async def kubelet(server: ApiServer, space: str) -> AsyncIterator[FakeKubelet]:
    logs = server.fake.cluster.logs if server.fake else None
    selection = ListOptions(space)
    async with FakeKubelet(
        server.access, behaviour=behaviour, selection=selection, logs=logs
    ) as kubelet:
        yield kubelet


async def create_pod(
    client: Client, name: str, space: str, *, until: str, policy: str = "Never"
) -> None:
    document = pod(name, space)
    document["spec"]["restartPolicy"] = policy
    await client.create(PODS, document)

    async def is_there() -> bool:
        status = (await client.get(PODS, name, namespace=space))["status"]
        states = [container["state"] for container in status.get("containerStatuses", ())]
        return any(until in state for state in states)

    await eventually(is_there)


def asking(space: str, name: str, **query: str) -> ApiRequest:
    path = PODS.path(namespace=space, name=name, subresource="log")
    return ApiRequest(method="GET", path=path, query=query)


async def log(client: Client, space: str, name: str, **query: str) -> str:
    return (await client.transport.send(asking(space, name, **query))).decode()


async def test_a_log_is_read_completely_by_its_tail_and_up_to_a_limit(
    kubelet: FakeKubelet, client: Client, space: str
) -> None:
    await create_pod(client, "done", space, until="terminated")
    assert await log(client, space, "done") == "one\ntwo\nthree\n"
    assert await log(client, space, "done", tailLines="2") == "two\nthree\n"
    assert await log(client, space, "done", limitBytes="5") == "one\nt"


async def test_lines_have_times_that_never_repeat(
    kubelet: FakeKubelet, client: Client, space: str
) -> None:
    await create_pod(client, "done", space, until="terminated")
    lines = (await log(client, space, "done", timestamps="true")).splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["one", "two", "three"]
    times = [line.split(" ", 1)[0] for line in lines]
    assert times == sorted(set(times))
    assert all(len(time) == len("2026-01-01T00:00:00.000000000Z") for time in times)
    assert await log(client, space, "done", sinceTime=times[2]) == "one\ntwo\nthree\n"
    assert await log(client, space, "done", sinceTime="2100-01-01T00:00:00Z") == ""


async def test_a_log_that_is_followed_ends_with_its_container(
    kubelet: FakeKubelet, client: Client, space: str
) -> None:
    await create_pod(client, "long", space, until="running")
    kubelet.write_log(space, "long", b"first\nhal")
    seen = bytearray()
    with anyio.fail_after(60):
        async with client.transport.stream(asking(space, "long", follow="true")) as response:
            async for chunk in response.content.iter_any():
                seen += chunk
                if seen == b"first\nhal":
                    kubelet.write_log(space, "long", b"f\nlast\n")
                elif seen.endswith(b"last\n"):
                    await client.delete(PODS, "long", namespace=space)
    assert seen == b"first\nhalf\nlast\n"


async def test_the_log_before_a_restart_is_the_previous_one(
    kubelet: FakeKubelet, client: Client, space: str
) -> None:
    await create_pod(client, "fails", space, until="running", policy="OnFailure")

    async def log_is_new() -> bool:
        return await log(client, space, "fails") == "1\n"

    await eventually(log_is_new)
    assert await log(client, space, "fails", previous="true") == "0\n"


async def test_a_container_that_has_not_started_has_no_log(
    kubelet: FakeKubelet, client: Client, space: str
) -> None:
    await create_pod(client, "waits", space, until="waiting")
    with pytest.raises(BadRequest, match="is waiting to start"):
        await log(client, space, "waits")
    with pytest.raises(BadRequest, match="container nobody is not valid for pod waits"):
        await log(client, space, "waits", container="nobody")
