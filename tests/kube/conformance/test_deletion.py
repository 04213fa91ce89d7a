"""Deletion: preconditions, grace periods, finalizers, owners, namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from danlu.kube.client import Client, DeleteOptions
from danlu.kube.errors import Conflict, Forbidden, Invalid, NotFound
from danlu.kube.patch import merge_patch
from danlu.kube.resources import CONFIG_MAPS, NAMESPACES, PODS, Resource
from danlu.kube.watch import ListOptions
from tests.kube.objects import config_map, owner, pod, wait_until_gone
from tests.kube.servers import ApiServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def garbage_collector(server: ApiServer) -> None:
    server.require_garbage_collector()


async def test_a_deletion_may_mean_one_object_only(client: Client, space: str) -> None:
    result = await client.create(CONFIG_MAPS, config_map("one", space))
    metadata = result["metadata"]
    with pytest.raises(Conflict, match="UID in the precondition"):
        await client.delete(CONFIG_MAPS, "one", namespace=space, options=DeleteOptions(uid="other"))
    with pytest.raises(Conflict, match="ResourceVersion in the precondition"):
        await client.delete(CONFIG_MAPS, "one", namespace=space, options=DeleteOptions(version="1"))
    options = DeleteOptions(uid=metadata["uid"], version=metadata["resourceVersion"])
    await client.delete(CONFIG_MAPS, "one", namespace=space, options=options)
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "one", namespace=space)


async def test_an_unscheduled_pod_is_deleted_immediately(client: Client, space: str) -> None:
    await client.create(PODS, pod("one", space))
    await client.delete(PODS, "one", namespace=space)
    with pytest.raises(NotFound):
        await client.get(PODS, "one", namespace=space)


async def bound(client: Client, space: str) -> dict[str, Any]:
    document = pod("one", space)
    document["spec"]["nodeName"] = "somewhere"
    return await client.create(PODS, document)


async def test_a_pod_on_a_node_is_deleted_when_the_kubelet_confirms(
    client: Client, space: str
) -> None:
    await bound(client, space)
    await client.delete(PODS, "one", namespace=space, options=DeleteOptions(grace=9))
    dying = await client.get(PODS, "one", namespace=space)
    assert dying["metadata"]["deletionGracePeriodSeconds"] == 9
    assert dying["metadata"]["deletionTimestamp"]
    await client.delete(PODS, "one", namespace=space, options=DeleteOptions(grace=0))
    with pytest.raises(NotFound):
        await client.get(PODS, "one", namespace=space)


async def test_a_pod_has_the_grace_of_its_spec(client: Client, space: str) -> None:
    await bound(client, space)
    await client.delete(PODS, "one", namespace=space)
    dying = await client.get(PODS, "one", namespace=space)
    assert dying["metadata"]["deletionGracePeriodSeconds"] == 30


async def test_a_finished_pod_is_deleted_immediately(client: Client, space: str) -> None:
    await bound(client, space)
    patch = merge_patch({"status": {"phase": "Succeeded"}})
    await client.patch(PODS, "one", patch, namespace=space, subresource="status")
    await client.delete(PODS, "one", namespace=space)
    with pytest.raises(NotFound):
        await client.get(PODS, "one", namespace=space)


async def create_with_finalizer(client: Client, space: str) -> dict[str, Any]:
    document = config_map("one", space)
    document["metadata"]["finalizers"] = ["test/hold"]
    return await client.create(CONFIG_MAPS, document)


async def test_a_finalizer_holds_an_object(client: Client, space: str) -> None:
    result = await create_with_finalizer(client, space)
    await client.delete(CONFIG_MAPS, "one", namespace=space)
    held = await client.get(CONFIG_MAPS, "one", namespace=space)
    assert held["metadata"]["deletionTimestamp"]
    assert held["metadata"]["uid"] == result["metadata"]["uid"]
    # A second deletion changes nothing.
    await client.delete(CONFIG_MAPS, "one", namespace=space)
    again = await client.get(CONFIG_MAPS, "one", namespace=space)
    assert again["metadata"]["resourceVersion"] == held["metadata"]["resourceVersion"]
    patch = merge_patch({"metadata": {"finalizers": None}})
    await client.patch(CONFIG_MAPS, "one", patch, namespace=space)
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "one", namespace=space)


async def test_no_finalizer_can_be_added_to_a_terminating_object(
    client: Client, space: str
) -> None:
    await create_with_finalizer(client, space)
    await client.delete(CONFIG_MAPS, "one", namespace=space)
    patch = merge_patch({"metadata": {"finalizers": ["test/hold", "test/more"]}})
    with pytest.raises(Invalid, match="no new finalizers can be added"):
        await client.patch(CONFIG_MAPS, "one", patch, namespace=space)


async def test_a_terminating_object_can_be_updated(client: Client, space: str) -> None:
    await create_with_finalizer(client, space)
    await client.delete(CONFIG_MAPS, "one", namespace=space)
    result = await client.patch(
        CONFIG_MAPS, "one", merge_patch({"data": {"a": "1"}}), namespace=space
    )
    assert result["data"] == {"a": "1"}
    assert result["metadata"]["deletionTimestamp"]


async def test_many_end_by_one_request(client: Client, space: str) -> None:
    for name in ("a", "b", "c"):
        document = config_map(name, space)
        document["metadata"]["labels"] = {"end": "yes" if name < "c" else "no"}
        await client.create(CONFIG_MAPS, document)
    await client.delete_all(CONFIG_MAPS, ListOptions(space, labels="end=yes"))
    remaining = await client.list(CONFIG_MAPS, ListOptions(space))
    assert [obj["metadata"]["name"] for obj in remaining.items] == ["c"]


async def family(client: Client, space: str, *, block: bool = False) -> None:
    parent = await client.create(CONFIG_MAPS, config_map("parent", space))
    references = [owner(parent, block=block)]
    await client.create(PODS, pod("child", space, ownerReferences=references))


@pytest.mark.usefixtures("garbage_collector")
async def test_dependents_are_deleted_with_their_owner(client: Client, space: str) -> None:
    await family(client, space)
    await client.delete(CONFIG_MAPS, "parent", namespace=space)
    await wait_until_gone(client, PODS, "child", space)


@pytest.mark.usefixtures("garbage_collector")
async def test_orphaned_dependents_are_kept(client: Client, space: str) -> None:
    await family(client, space)
    options = DeleteOptions(propagation="Orphan")
    await client.delete(CONFIG_MAPS, "parent", namespace=space, options=options)
    await wait_until_gone(client, CONFIG_MAPS, "parent", space)
    child = await client.get(PODS, "child", namespace=space)
    assert not child["metadata"].get("ownerReferences")


@pytest.mark.usefixtures("garbage_collector")
async def test_foreground_deletion_waits_for_dependents(client: Client, space: str) -> None:
    await family(client, space, block=True)
    hold = merge_patch({"metadata": {"finalizers": ["test/hold"]}})
    await client.patch(PODS, "child", hold, namespace=space)
    options = DeleteOptions(propagation="Foreground")
    await client.delete(CONFIG_MAPS, "parent", namespace=space, options=options)
    waiting = await client.get(CONFIG_MAPS, "parent", namespace=space)
    assert waiting["metadata"]["finalizers"] == ["foregroundDeletion"]
    let_go = merge_patch({"metadata": {"finalizers": None}})
    await client.patch(PODS, "child", let_go, namespace=space)
    for resource, name in ((PODS, "child"), (CONFIG_MAPS, "parent")):
        await wait_until_gone(client, resource, name, space)


@pytest.mark.usefixtures("garbage_collector")
async def test_a_dependent_with_a_remaining_owner_is_kept(client: Client, space: str) -> None:
    parents = [await client.create(CONFIG_MAPS, config_map(name, space)) for name in "ab"]
    references = [owner(parent) | {"controller": False} for parent in parents]
    await client.create(PODS, pod("child", space, ownerReferences=references))
    await client.delete(CONFIG_MAPS, "a", namespace=space)
    await wait_until_gone(client, CONFIG_MAPS, "a", space)
    assert await client.get(PODS, "child", namespace=space)
    await client.delete(CONFIG_MAPS, "b", namespace=space)
    await wait_until_gone(client, PODS, "child", space)


async def test_an_object_cannot_have_two_controllers(client: Client, space: str) -> None:
    parents = [await client.create(CONFIG_MAPS, config_map(name, space)) for name in "ab"]
    references = [owner(parent) for parent in parents]
    with pytest.raises(Invalid, match="Only one reference can have Controller"):
        await client.create(PODS, pod("child", space, ownerReferences=references))


@pytest.mark.usefixtures("garbage_collector")
async def test_deleting_a_namespace_deletes_its_objects(client: Client, space: str) -> None:
    await create_with_finalizer(client, space)
    await client.delete(NAMESPACES, space)
    ending = await client.get(NAMESPACES, space)
    assert ending["status"]["phase"] == "Terminating"
    with pytest.raises(Forbidden, match="because it is being terminated") as caught:
        await client.create(CONFIG_MAPS, config_map("late", space))
    assert caught.value.causes[0].reason == "NamespaceTerminating"
    patch = merge_patch({"metadata": {"finalizers": None}})
    await client.patch(CONFIG_MAPS, "one", patch, namespace=space)
    everything: list[tuple[Resource[Any], str, str]] = [
        (CONFIG_MAPS, "one", space),
        (NAMESPACES, space, ""),
    ]
    for resource, name, namespace in everything:
        await wait_until_gone(client, resource, name, namespace)
