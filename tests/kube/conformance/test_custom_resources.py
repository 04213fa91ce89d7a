"""Custom resources: CRDs, schemas, status and scale."""

from __future__ import annotations

import pytest

from danlu.kube.client import Client
from danlu.kube.errors import AlreadyExists, ApiError, Invalid
from danlu.kube.patch import merge_patch, strategic_patch
from danlu.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource
from danlu.kube.types import Manifest
from danlu.kube.watch import ListOptions
from tests.kube.objects import THINGS, definition, eventually, make_custom_object

pytestmark = pytest.mark.anyio
SCALE = Resource("danlu.test", "v1", "things", "Scale", Manifest)


@pytest.fixture(autouse=True)
async def things(client: Client) -> None:
    try:
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, definition())
    except AlreadyExists:
        return

    async def is_available() -> bool:
        try:
            await client.list(THINGS, ListOptions("default"))
        except ApiError:
            return False
        return True

    await eventually(is_available)


async def test_a_crd_is_established_before_it_is_served(client: Client) -> None:
    async def crd_is_ready() -> bool:
        result = await client.get(CUSTOM_RESOURCE_DEFINITIONS, "things.danlu.test")
        conditions = {
            condition["type"]: condition["status"] for condition in result["status"]["conditions"]
        }
        return conditions.get("Established") == conditions.get("NamesAccepted") == "True"

    await eventually(crd_is_ready)


async def test_unknown_fields_are_pruned(client: Client, space: str) -> None:
    result = await client.create(
        THINGS, make_custom_object("one", space, size=1, unknown=2, free={"kept": [1]})
    )
    assert "unknown" not in result["spec"]
    assert result["spec"]["free"] == {"kept": [1]}


async def test_the_schema_gives_defaults(client: Client, space: str) -> None:
    assert (await client.create(THINGS, make_custom_object("one", space, size=1)))["spec"][
        "colour"
    ] == "red"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "spec.size"),
        ({"size": "big"}, "spec.size"),
        ({"size": -1}, "spec.size"),
        ({"size": 101}, "spec.size"),
        ({"size": 1, "colour": "blue"}, "spec.colour"),
        ({"size": 1, "parts": [{"weight": 1}]}, "spec.parts[0].name"),
    ],
)
async def test_schema_violations_are_invalid(
    client: Client, space: str, spec: dict[str, object], field: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await client.create(THINGS, make_custom_object("one", space, **spec))
    assert field in {cause.field for cause in caught.value.causes}


async def test_the_generation_changes_with_the_spec_only(client: Client, space: str) -> None:
    result = await client.create(THINGS, make_custom_object("one", space, size=1))
    assert result["metadata"]["generation"] == 1
    result["status"] = {"seen": 1}
    result = await client.update(THINGS, result, subresource="status")
    assert result["metadata"]["generation"] == 1
    result["metadata"]["labels"] = {"a": "b"}
    result = await client.update(THINGS, result)
    assert result["metadata"]["generation"] == 1
    result["spec"]["size"] = 2
    assert (await client.update(THINGS, result))["metadata"]["generation"] == 2


async def test_the_status_of_a_custom_resource_is_a_subresource(client: Client, space: str) -> None:
    result = await client.create(
        THINGS, make_custom_object("one", space, size=1) | {"status": {"a": 1}}
    )
    assert "status" not in result
    result |= {"status": {"a": 1}, "spec": {"size": 9}}
    result["metadata"]["labels"] = {"ignored": "yes"}
    result = await client.update(THINGS, result, subresource="status")
    assert result["status"] == {"a": 1}
    assert result["spec"]["size"] == 1
    assert "labels" not in result["metadata"]
    patch = merge_patch({"status": {"b": 2}})
    result = await client.patch(THINGS, "one", patch, namespace=space, subresource="status")
    assert result["status"] == {"a": 1, "b": 2}


async def test_an_update_of_a_thing_needs_its_version(client: Client, space: str) -> None:
    await client.create(THINGS, make_custom_object("one", space, size=1))
    with pytest.raises(Invalid, match="must be specified for an update"):
        await client.update(THINGS, make_custom_object("one", space, size=2))


async def test_a_thing_takes_no_strategic_merge(client: Client, space: str) -> None:
    await client.create(THINGS, make_custom_object("one", space, size=1))
    with pytest.raises(ApiError) as caught:
        await client.patch(THINGS, "one", strategic_patch({"spec": {}}), namespace=space)
    assert caught.value.status.code == 415


async def test_the_scale_is_read_and_written(client: Client, space: str) -> None:
    result = await client.create(THINGS, make_custom_object("one", space, size=1, replicas=2))
    result["status"] = {"replicas": 1, "selector": "a=b"}
    await client.update(THINGS, result, subresource="status")
    scale = await client.get(SCALE, "one", namespace=space, subresource="scale")
    assert scale["kind"] == "Scale"
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"] == {"replicas": 1, "selector": "a=b"}
    patch = merge_patch({"spec": {"replicas": 5}})
    scale = await client.patch(SCALE, "one", patch, namespace=space, subresource="scale")
    assert scale["spec"] == {"replicas": 5}
    thing_now = await client.get(THINGS, "one", namespace=space)
    assert thing_now["spec"]["replicas"] == 5
    assert thing_now["metadata"]["generation"] == 2


async def test_items_of_a_custom_resource_list_have_a_kind(client: Client, space: str) -> None:
    await client.create(THINGS, make_custom_object("one", space, size=1))
    (item,) = (await client.list(THINGS, ListOptions(space))).items
    assert (item["apiVersion"], item["kind"]) == ("danlu.test/v1", "Thing")
