"""The types of patches, and server-side apply."""

from __future__ import annotations

from typing import Any

import pytest

from danlu.kube.client import Client
from danlu.kube.errors import ApiError, BadRequest, Conflict, Invalid, NotFound
from danlu.kube.patch import json_patch, merge_patch, strategic_patch
from danlu.kube.resources import CONFIG_MAPS, PODS
from tests.kube.objects import config_map, pod

pytestmark = pytest.mark.anyio


async def patch_config_map(client: Client, space: str, patch: Any) -> dict[str, Any]:
    await client.create(CONFIG_MAPS, config_map("one", space, a="1", b="2"))
    return await client.patch(CONFIG_MAPS, "one", patch, namespace=space)


async def test_a_merge_sets_and_removes(client: Client, space: str) -> None:
    result = await patch_config_map(
        client, space, merge_patch({"data": {"a": "9", "b": None, "c": "3"}})
    )
    assert result["data"] == {"a": "9", "c": "3"}


async def test_a_merge_replaces_lists(client: Client, space: str) -> None:
    await client.create(PODS, pod("one", space, finalizers=["test/a"]))
    result = await client.patch(
        PODS, "one", merge_patch({"metadata": {"finalizers": ["test/b"]}}), namespace=space
    )
    assert result["metadata"]["finalizers"] == ["test/b"]


async def test_operations_in_order(client: Client, space: str) -> None:
    patch = json_patch(
        [
            {"op": "test", "path": "/data/a", "value": "1"},
            {"op": "replace", "path": "/data/a", "value": "9"},
            {"op": "copy", "from": "/data/a", "path": "/data/c"},
            {"op": "move", "from": "/data/b", "path": "/data/d"},
            {"op": "add", "path": "/metadata/annotations", "value": {"a.b/c": "d", "e~f": "g"}},
            {"op": "remove", "path": "/metadata/annotations/a.b~1c"},
            {"op": "remove", "path": "/metadata/annotations/e~0f"},
        ]
    )
    result = await patch_config_map(client, space, patch)
    assert result["data"] == {"a": "9", "c": "9", "d": "2"}
    assert not result["metadata"].get("annotations")


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/data/a", "value": "other"},
        {"op": "remove", "path": "/data/none"},
        {"op": "replace", "path": "/data/none/below", "value": "1"},
    ],
)
async def test_operations_are_all_or_none(
    client: Client, space: str, operation: dict[str, str]
) -> None:
    first = {"op": "add", "path": "/data/z", "value": "26"}
    with pytest.raises(ApiError) as caught:
        await patch_config_map(client, space, json_patch([first, operation]))
    assert caught.value.status.code == 422
    config_map = await client.get(CONFIG_MAPS, "one", namespace=space)
    assert config_map["data"] == {"a": "1", "b": "2"}


async def test_operations_must_be_a_list(client: Client, space: str) -> None:
    with pytest.raises(BadRequest):
        await patch_config_map(client, space, json_patch({"op": "add"}))  # type: ignore[arg-type]


async def test_a_strategic_merge_matches_items_by_name(client: Client, space: str) -> None:
    document = pod("one", space)
    document["spec"]["containers"].append({"name": "side", "image": "example.org/side"})
    await client.create(PODS, document)
    patch = {"spec": {"containers": [{"name": "side", "image": "example.org/new"}]}}
    result = await client.patch(PODS, "one", strategic_patch(patch), namespace=space)
    assert [
        (container["name"], container["image"]) for container in result["spec"]["containers"]
    ] == [
        ("main", "example.org/image"),
        ("side", "example.org/new"),
    ]


async def test_a_strategic_merge_deletes_from_lists(client: Client, space: str) -> None:
    await client.create(PODS, pod("one", space, finalizers=["test/a", "test/b"]))
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["test/a"]}}
    result = await client.patch(PODS, "one", strategic_patch(patch), namespace=space)
    assert result["metadata"]["finalizers"] == ["test/b"]


async def test_a_strategic_merge_joins_sets(client: Client, space: str) -> None:
    await client.create(PODS, pod("one", space, finalizers=["test/a"]))
    patch = {"metadata": {"finalizers": ["test/b"]}}
    result = await client.patch(PODS, "one", strategic_patch(patch), namespace=space)
    assert sorted(result["metadata"]["finalizers"]) == ["test/a", "test/b"]


async def test_owners_are_deleted_by_uid(client: Client, space: str) -> None:
    parents = [await client.create(CONFIG_MAPS, config_map(name, space)) for name in "ab"]
    owners = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": parent["metadata"]["name"],
            "uid": parent["metadata"]["uid"],
        }
        for parent in parents
    ]
    await client.create(PODS, pod("one", space, ownerReferences=owners))
    gone = {"$patch": "delete", "uid": owners[0]["uid"]}
    patch = strategic_patch({"metadata": {"ownerReferences": [gone]}})
    result = await client.patch(PODS, "one", patch, namespace=space)
    assert [reference["name"] for reference in result["metadata"]["ownerReferences"]] == ["b"]


async def test_the_status_is_patched_by_its_subresource(client: Client, space: str) -> None:
    await client.create(PODS, pod("one", space))
    patch = merge_patch({"status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}}})
    result = await client.patch(PODS, "one", patch, namespace=space, subresource="status")
    assert result["status"]["phase"] == "Running"
    result = await client.patch(
        PODS, "one", merge_patch({"status": {"phase": "Failed"}}), namespace=space
    )
    assert result["status"]["phase"] == "Running"


async def test_conditions_merge_by_type(client: Client, space: str) -> None:
    await client.create(PODS, pod("one", space))
    for kind, status in (("Ready", "False"), ("Mine", "True"), ("Ready", "True")):
        patch = {"status": {"conditions": [{"type": kind, "status": status}]}}
        result = await client.patch(
            PODS, "one", strategic_patch(patch), namespace=space, subresource="status"
        )
    results = {
        condition["type"]: condition["status"] for condition in result["status"]["conditions"]
    }
    assert results == {"Ready": "True", "Mine": "True"}


async def test_a_version_in_a_patch_is_a_precondition(client: Client, space: str) -> None:
    result = await client.create(CONFIG_MAPS, config_map("one", space, a="1"))
    version = result["metadata"]["resourceVersion"]
    patch = merge_patch({"metadata": {"resourceVersion": version}, "data": {"a": "2"}})
    await client.patch(CONFIG_MAPS, "one", patch, namespace=space)
    patch = merge_patch({"metadata": {"resourceVersion": version}, "data": {"a": "3"}})
    with pytest.raises(Conflict):
        await client.patch(CONFIG_MAPS, "one", patch, namespace=space)


async def test_a_patch_creates_no_object(client: Client, space: str) -> None:
    with pytest.raises(NotFound):
        await client.patch(CONFIG_MAPS, "none", merge_patch({"data": {}}), namespace=space)


async def test_a_patch_without_changes_keeps_the_resource_version(
    client: Client, space: str
) -> None:
    before = await client.create(CONFIG_MAPS, config_map("one", space, a="1"))
    after = await client.patch(
        CONFIG_MAPS, "one", merge_patch({"data": {"a": "1"}}), namespace=space
    )
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_a_patch_must_result_in_a_valid_object(client: Client, space: str) -> None:
    await client.create(PODS, pod("one", space))
    with pytest.raises(Invalid):
        await client.patch(PODS, "one", merge_patch({"spec": {"containers": []}}), namespace=space)


async def test_create_or_patch_keeps_what_the_manifest_leaves_out(
    client: Client, space: str
) -> None:
    created = await client.create_or_patch(CONFIG_MAPS, config_map("one", space, a="1", b="1"))
    assert created["data"] == {"a": "1", "b": "1"}
    patched = await client.create_or_patch(CONFIG_MAPS, config_map("one", space, a="2"))
    assert patched["data"] == {"a": "2", "b": "1"}


async def test_what_is_applied_is_created_then_changed(client: Client, space: str) -> None:
    created = await client.apply(CONFIG_MAPS, config_map("one", space, a="1", b="2"))
    changed = await client.apply(CONFIG_MAPS, config_map("one", space, b="3", c="4"))
    assert changed["metadata"]["uid"] == created["metadata"]["uid"]
    # What this manager no longer wants is gone.
    assert changed["data"] == {"b": "3", "c": "4"}
    again = await client.apply(CONFIG_MAPS, config_map("one", space, b="3", c="4"))
    assert again["metadata"]["resourceVersion"] == changed["metadata"]["resourceVersion"]


async def test_fields_of_others_are_kept_by_an_apply(client: Client, space: str) -> None:
    await client.apply(PODS, pod("one", space, labels={"a": "1"}))
    other = merge_patch({"metadata": {"labels": {"b": "2"}}})
    await client.patch(PODS, "one", other, namespace=space)
    result = await client.apply(PODS, pod("one", space, labels={"a": "9"}))
    assert result["metadata"]["labels"] == {"a": "9", "b": "2"}
    assert result["spec"]["restartPolicy"] == "Always"  # the server's default


async def test_a_dry_run_of_an_apply_only_checks(client: Client, space: str) -> None:
    await client.apply(CONFIG_MAPS, config_map("one", space, a="1"), dry_run=True)
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, "one", namespace=space)
    invalid = pod("one", space)
    invalid["spec"]["containers"] = []
    with pytest.raises(Invalid):
        await client.apply(PODS, invalid, dry_run=True)


async def test_an_apply_in_a_missing_namespace_names_it(client: Client) -> None:
    with pytest.raises(NotFound) as caught:
        await client.apply(CONFIG_MAPS, config_map("one", "nowhere", a="1"))
    assert caught.value.status.details is not None
    assert (caught.value.status.details.kind, caught.value.status.details.name) == (
        "namespaces",
        "nowhere",
    )
