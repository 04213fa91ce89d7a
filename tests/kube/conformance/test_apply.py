"""Server-side apply: field ownership."""

from __future__ import annotations

from typing import Any

import pytest

from danlu.kube.client import Client
from danlu.kube.errors import ApplyConflict, Conflict, Retry
from danlu.kube.resources import CONFIG_MAPS, PODS, SERVICES
from tests.kube.objects import config_map, pod, service

pytestmark = pytest.mark.anyio


def read_managed_fields(
    obj: dict[str, Any], manager: str, operation: str = "Apply"
) -> dict[str, Any]:
    for entry in obj["metadata"]["managedFields"]:
        if (entry["manager"], entry["operation"]) == (manager, operation):
            fields: dict[str, Any] = entry["fieldsV1"]
            return fields
    return {}


async def test_apply_creates_a_missing_object(client: Client, space: str) -> None:
    result = await client.apply(CONFIG_MAPS, config_map("one", space, a="1"), manager="first")
    assert result["data"] == {"a": "1"}
    assert read_managed_fields(result, "first") == {"f:data": {"f:a": {}}}


async def test_two_field_managers_own_what_each_applies(client: Client, space: str) -> None:
    await client.apply(CONFIG_MAPS, config_map("one", space, a="1"), manager="first")
    result = await client.apply(CONFIG_MAPS, config_map("one", space, b="2"), manager="second")
    assert result["data"] == {"a": "1", "b": "2"}
    assert read_managed_fields(result, "second") == {"f:data": {"f:b": {}}}


async def test_applying_a_field_of_another_manager_conflicts(client: Client, space: str) -> None:
    await client.apply(CONFIG_MAPS, config_map("one", space, a="1"), manager="first")
    with pytest.raises(ApplyConflict) as caught:
        await client.apply(CONFIG_MAPS, config_map("one", space, a="2"), manager="second")
    (cause,) = caught.value.causes
    assert cause.reason == "FieldManagerConflict"
    assert cause.field == ".data.a"
    assert cause.message == 'conflict with "first"'
    assert caught.value.retry == Retry.NEVER


async def test_the_same_value_is_shared(client: Client, space: str) -> None:
    await client.apply(CONFIG_MAPS, config_map("one", space, a="1"), manager="first")
    result = await client.apply(CONFIG_MAPS, config_map("one", space, a="1"), manager="second")
    assert (
        read_managed_fields(result, "first")
        == read_managed_fields(result, "second")
        == {"f:data": {"f:a": {}}}
    )
    result = await client.apply(CONFIG_MAPS, config_map("one", space), manager="first")
    assert result["data"] == {"a": "1"}


async def test_force_takes_a_field(client: Client, space: str) -> None:
    await client.apply(CONFIG_MAPS, config_map("one", space, a="1", b="1"), manager="first")
    result = await client.apply(
        CONFIG_MAPS, config_map("one", space, a="2"), manager="second", force=True
    )
    assert result["data"] == {"a": "2", "b": "1"}
    assert read_managed_fields(result, "first") == {"f:data": {"f:b": {}}}


async def test_a_field_left_out_of_an_apply_is_removed(client: Client, space: str) -> None:
    await client.apply(CONFIG_MAPS, config_map("one", space, a="1", b="2"), manager="first")
    result = await client.apply(CONFIG_MAPS, config_map("one", space, b="2"), manager="first")
    assert result["data"] == {"b": "2"}


async def test_an_update_takes_ownership_of_the_fields_it_changes(
    client: Client, space: str
) -> None:
    result = await client.apply(
        CONFIG_MAPS, config_map("one", space, a="1", b="1"), manager="first"
    )
    result["data"]["a"] = "2"
    result = await client.update(CONFIG_MAPS, result)
    assert read_managed_fields(result, "first") == {"f:data": {"f:b": {}}}
    assert read_managed_fields(result, "tests", "Update")["f:data"]["f:a"] == {}
    with pytest.raises(ApplyConflict) as caught:
        await client.apply(CONFIG_MAPS, config_map("one", space, a="1", b="1"), manager="first")
    assert caught.value.causes[0].message.startswith('conflict with "tests" using v1')


async def test_omitted_fields_of_other_managers_are_kept(client: Client, space: str) -> None:
    await client.create(CONFIG_MAPS, config_map("one", space, a="1"))
    result = await client.apply(CONFIG_MAPS, config_map("one", space, b="2"), manager="first")
    result = await client.apply(CONFIG_MAPS, config_map("one", space), manager="first")
    assert result["data"] == {"a": "1"}


async def test_applying_twice_keeps_the_resource_version(client: Client, space: str) -> None:
    first = await client.apply(CONFIG_MAPS, config_map("one", space, a="1"), manager="first")
    second = await client.apply(CONFIG_MAPS, config_map("one", space, a="1"), manager="first")
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


async def test_items_of_lists_have_owners(client: Client, space: str) -> None:
    document = service("one", space, ports=[{"port": 80, "name": "a"}])
    await client.apply(SERVICES, document, manager="first")
    document = service("one", space, ports=[{"port": 81, "name": "b"}])
    result = await client.apply(SERVICES, document, manager="second")
    assert [port["port"] for port in result["spec"]["ports"]] == [80, 81]
    item = read_managed_fields(result, "second")["f:spec"]["f:ports"][
        'k:{"port":81,"protocol":"TCP"}'
    ]
    assert {".", "f:port", "f:name"} <= item.keys()


async def test_containers_are_merged_by_name(client: Client, space: str) -> None:
    result = await client.apply(PODS, pod("one", space), manager="first")
    document = pod("one", space)
    document["spec"]["containers"][0]["image"] = "example.org/other"
    with pytest.raises(ApplyConflict) as caught:
        await client.apply(PODS, document, manager="second")
    assert caught.value.causes[0].field == '.spec.containers[name="main"].image'
    result = await client.apply(PODS, document, manager="second", force=True)
    assert result["spec"]["containers"][0]["image"] == "example.org/other"


async def test_a_version_is_a_precondition_of_applying_too(client: Client, space: str) -> None:
    result = await client.apply(CONFIG_MAPS, config_map("one", space, a="1"), manager="first")
    await client.update(CONFIG_MAPS, config_map("one", space, a="2"))
    document = config_map("one", space, a="3")
    document["metadata"]["resourceVersion"] = result["metadata"]["resourceVersion"]
    with pytest.raises(Conflict):
        await client.apply(CONFIG_MAPS, document, manager="first", force=True)


async def test_the_status_has_separate_managers(client: Client, space: str) -> None:
    await client.create(PODS, pod("one", space))
    status = {"conditions": [{"type": "Mine", "status": "True"}]}
    document = PODS.to_manifest({"metadata": {"name": "one", "namespace": space}, "status": status})
    result = await client.apply(PODS, document, manager="first", subresource="status")
    assert {"type": "Mine", "status": "True"}.items() <= result["status"]["conditions"][0].items()
    (entry,) = [
        entry for entry in result["metadata"]["managedFields"] if entry["manager"] == "first"
    ]
    assert entry["subresource"] == "status"


async def test_a_dry_run_of_applying_does_nothing(client: Client, space: str) -> None:
    await client.apply(CONFIG_MAPS, config_map("one", space, a="1"), manager="first")
    output = await client.apply(
        CONFIG_MAPS, config_map("one", space, a="2"), manager="first", dry_run=True
    )
    assert output["data"] == {"a": "2"}
    assert (await client.get(CONFIG_MAPS, "one", namespace=space))["data"] == {"a": "1"}
