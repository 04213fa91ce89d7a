"""Single objects: create, get, update, and their errors."""

from __future__ import annotations

import pytest

from danlu.errors import TemporaryError
from danlu.kube.client import Client
from danlu.kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Invalid,
    NotFound,
    Retry,
)
from danlu.kube.resources import CONFIG_MAPS, LEASES, PODS, SECRETS, SERVICES, Resource
from danlu.kube.types import Object
from tests.kube.objects import config_map, pod, service

pytestmark = pytest.mark.anyio


async def test_a_created_object_can_be_read(client: Client, space: str) -> None:
    result = await client.create(CONFIG_MAPS, config_map("one", space, a="1"))
    read = await client.get(CONFIG_MAPS, "one", namespace=space)
    assert result == read
    assert read["data"] == {"a": "1"}
    metadata = read["metadata"]
    assert metadata["uid"]
    assert metadata["creationTimestamp"].endswith("Z")
    assert int(metadata["resourceVersion"]) > 0
    assert metadata["namespace"] == space


async def test_an_object_is_decoded_as_the_requested_model(client: Client, space: str) -> None:
    await client.create(CONFIG_MAPS, config_map("one", space) | {"immutable": False})
    read = await client.get(CONFIG_MAPS.with_model(Object), "one", namespace=space)
    assert read.key == (space, "one")
    assert read.metadata.creation_timestamp is not None
    assert read.kind == "ConfigMap"


async def test_the_same_name_twice_is_refused(client: Client, space: str) -> None:
    await client.create(CONFIG_MAPS, config_map("one", space))
    with pytest.raises(AlreadyExists) as caught:
        await client.create(CONFIG_MAPS, config_map("one", space))
    assert caught.value.status.details is not None
    assert caught.value.status.details.name == "one"
    assert caught.value.status.details.kind == "configmaps"
    assert 'configmaps "one" already exists' in str(caught.value)


async def test_a_missing_object_is_not_found(client: Client, space: str) -> None:
    with pytest.raises(NotFound, match='pods "nobody" not found'):
        await client.get(PODS, "nobody", namespace=space)
    with pytest.raises(NotFound):
        await client.delete(PODS, "nobody", namespace=space)
    with pytest.raises(NotFound):
        await client.update(CONFIG_MAPS, config_map("nobody", space))


async def test_a_kind_that_is_not_served_is_not_found(client: Client, space: str) -> None:
    with pytest.raises(NotFound, match="404 page not found"):
        await client.get(Resource("no.such", "v1", "things", "Thing", dict), "x", namespace=space)
    with pytest.raises(NotFound, match="could not find the requested resource"):
        await client.get(Resource("", "v1", "things", "Thing", dict), "x", namespace=space)


async def test_nothing_is_created_in_a_missing_namespace(client: Client) -> None:
    with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
        await client.create(CONFIG_MAPS, config_map("one", "nowhere"))


async def test_a_name_is_generated_from_a_prefix(client: Client, space: str) -> None:
    document = config_map("", space)
    document["metadata"] = {"generateName": "begins-", "namespace": space}
    names = {(await client.create(CONFIG_MAPS, document))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("begins-") and len(name) == 12 for name in names)


async def test_a_name_that_is_none_is_invalid(client: Client, space: str) -> None:
    with pytest.raises(Invalid) as caught:
        await client.create(CONFIG_MAPS, config_map("No_Name", space))
    assert [(cause.reason, cause.field) for cause in caught.value.causes] == [
        ("FieldValueInvalid", "metadata.name")
    ]


async def test_all_wrong_fields_are_named(client: Client, space: str) -> None:
    document = pod("wrong", space)
    document["spec"]["containers"] = [{"name": "a"}, {"image": "b"}]
    with pytest.raises(Invalid) as caught:
        await client.create(PODS, document)
    fields = {cause.field for cause in caught.value.causes}
    assert {"spec.containers[0].image", "spec.containers[1].name"} <= fields
    assert caught.value.status.details is not None
    assert caught.value.status.details.kind == "Pod"


async def test_a_pod_needs_containers(client: Client, space: str) -> None:
    document = pod("empty", space)
    document["spec"]["containers"] = []
    with pytest.raises(Invalid) as caught:
        await client.create(PODS, document)
    assert "spec.containers" in {cause.field for cause in caught.value.causes}


async def test_a_pod_gets_defaults(client: Client, space: str) -> None:
    result = await client.create(PODS, pod("one", space))
    assert result["spec"]["restartPolicy"] == "Always"
    assert result["spec"]["terminationGracePeriodSeconds"] == 30
    assert result["spec"]["schedulerName"] == "default-scheduler"
    assert result["status"]["phase"] == "Pending"
    assert result["metadata"].get("generation", 1) == 1


async def test_a_new_object_has_no_version(client: Client, space: str) -> None:
    document = config_map("one", space)
    document["metadata"]["resourceVersion"] = "5"
    with pytest.raises(ApiError, match="resourceVersion should not be set"):
        await client.create(CONFIG_MAPS, document)


async def test_another_namespace_than_the_address_is_refused(client: Client, space: str) -> None:
    with pytest.raises(BadRequest, match="namespace"):
        await client.create(CONFIG_MAPS, config_map("one", "default"), namespace=space)


async def test_an_update_replaces_the_object(client: Client, space: str) -> None:
    result = await client.create(CONFIG_MAPS, config_map("one", space, a="1", b="2"))
    result["data"] = {"c": "3"}
    updated = await client.update(CONFIG_MAPS, result)
    assert updated["data"] == {"c": "3"}
    assert updated["metadata"]["uid"] == result["metadata"]["uid"]
    assert int(updated["metadata"]["resourceVersion"]) > int(result["metadata"]["resourceVersion"])


async def test_an_update_of_an_old_version_conflicts(client: Client, space: str) -> None:
    old = await client.create(CONFIG_MAPS, config_map("one", space, a="1"))
    await client.update(CONFIG_MAPS, old | {"data": {"a": "2"}})
    with pytest.raises(Conflict, match="the object has been modified") as caught:
        await client.update(CONFIG_MAPS, old | {"data": {"a": "3"}})
    assert caught.value.retry == Retry.REREAD
    assert not isinstance(caught.value, TemporaryError)


async def test_an_update_without_a_version_wins(client: Client, space: str) -> None:
    await client.create(CONFIG_MAPS, config_map("one", space, a="1"))
    updated = await client.update(CONFIG_MAPS, config_map("one", space, a="2"))
    assert updated["data"] == {"a": "2"}


async def test_an_update_of_another_object_of_the_name_conflicts(
    client: Client, space: str
) -> None:
    old = await client.create(CONFIG_MAPS, config_map("one", space))
    await client.delete(CONFIG_MAPS, "one", namespace=space)
    await client.create(CONFIG_MAPS, config_map("one", space))
    del old["metadata"]["resourceVersion"]
    with pytest.raises(Conflict, match="UID"):
        await client.update(CONFIG_MAPS, old)


async def test_an_update_without_changes_keeps_the_resource_version(
    client: Client, space: str
) -> None:
    result = await client.create(CONFIG_MAPS, config_map("one", space, a="1"))
    same = await client.update(CONFIG_MAPS, result)
    assert same["metadata"]["resourceVersion"] == result["metadata"]["resourceVersion"]


async def test_an_update_cannot_change_the_status(client: Client, space: str) -> None:
    result = await client.create(CONFIG_MAPS, config_map("one", space))
    result["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z"
    result["data"] = {"a": "1"}
    updated = await client.update(CONFIG_MAPS, result)
    assert not updated["metadata"]["creationTimestamp"].startswith("2001")


async def test_a_lease_is_created_by_its_first_update(client: Client, space: str) -> None:
    lease = LEASES.to_manifest({"metadata": {"name": "one", "namespace": space}, "spec": {}})
    result = await client.update(LEASES, lease)
    assert result["metadata"]["uid"]


async def test_a_lease_is_not_updated_without_its_version(client: Client, space: str) -> None:
    lease = LEASES.to_manifest({"metadata": {"name": "one", "namespace": space}, "spec": {}})
    await client.create(LEASES, lease)
    with pytest.raises(Invalid, match="must be specified for an update"):
        await client.update(LEASES, lease | {"spec": {"holderIdentity": "a"}})


async def test_the_spec_of_a_pod_is_immutable(client: Client, space: str) -> None:
    result = await client.create(PODS, pod("one", space))
    result["spec"]["containers"][0]["image"] = "example.org/other"
    result = await client.update(PODS, result)
    assert result["spec"]["containers"][0]["image"] == "example.org/other"
    result["spec"]["hostname"] = "other"
    with pytest.raises(Invalid, match="pod updates may not change fields"):
        await client.update(PODS, result)


async def test_status_is_written_only_by_its_subresource(client: Client, space: str) -> None:
    result = await client.create(PODS, pod("one", space) | {"status": {"phase": "Running"}})
    assert result["status"]["phase"] == "Pending"
    result["status"]["phase"] = "Running"
    assert (await client.update(PODS, result))["status"]["phase"] == "Pending"
    fresh = await client.get(PODS, "one", namespace=space)
    fresh["status"]["phase"] = "Running"
    fresh["spec"]["hostname"] = "ignored"
    updated = await client.update(PODS, fresh, subresource="status")
    assert updated["status"]["phase"] == "Running"
    assert "hostname" not in updated["spec"]


async def test_a_service_without_address_keeps_none(client: Client, space: str) -> None:
    result = await client.create(SERVICES, service("one", space, clusterIP="None"))
    assert result["spec"]["clusterIP"] == "None"
    assert result["spec"]["type"] == "ClusterIP"
    with pytest.raises(Invalid) as caught:
        await client.create(SERVICES, service("two", space))
    assert "spec.ports" in {cause.field for cause in caught.value.causes}


async def test_a_service_gets_an_address_and_keeps_it(client: Client, space: str) -> None:
    result = await client.create(SERVICES, service("one", space, ports=[{"port": 80}]))
    address = result["spec"]["clusterIP"]
    assert address.startswith("10.0.")
    assert result["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    result["spec"]["clusterIP"] = "10.0.99.99" if address != "10.0.99.99" else "10.0.99.98"
    with pytest.raises(Invalid):
        await client.update(SERVICES, result)


async def test_the_strings_of_a_secret_are_kept_as_data(client: Client, space: str) -> None:
    document = SECRETS.to_manifest(
        {"metadata": {"name": "one", "namespace": space}, "stringData": {"a": "hello"}}
    )
    result = await client.create(SECRETS, document)
    assert result["data"] == {"a": "aGVsbG8="}
    assert "stringData" not in result
    assert result["type"] == "Opaque"


async def test_immutable_fields_cannot_change(client: Client, space: str) -> None:
    result = await client.create(CONFIG_MAPS, config_map("one", space, a="1") | {"immutable": True})
    with pytest.raises(Invalid, match="immutable"):
        await client.update(CONFIG_MAPS, result | {"data": {"a": "2"}})


async def test_a_body_of_another_kind_is_rejected(client: Client, space: str) -> None:
    document = config_map("one", space) | {"kind": "Secret"}
    with pytest.raises(BadRequest):
        await client.create(CONFIG_MAPS, document)
