"""Lists: selectors, pages, versions."""

from __future__ import annotations

from typing import Any

import pytest

from danlu.kube.client import Client
from danlu.kube.errors import BadRequest, Gone
from danlu.kube.resources import CONFIG_MAPS, PODS
from danlu.kube.types import Object
from danlu.kube.watch import ListOptions
from tests.kube.objects import config_map, pod
from tests.kube.servers import ApiServer

pytestmark = pytest.mark.anyio


def names(items: tuple[dict[str, Any], ...]) -> list[str]:
    return [obj["metadata"]["name"] for obj in items]


async def create_with_labels(client: Client, space: str) -> None:
    for name, labels in (
        ("a", {"kind": "x", "size": "1"}),
        ("b", {"kind": "y", "size": "1"}),
        ("c", {"kind": "x"}),
        ("d", {}),
    ):
        document = config_map(name, space)
        document["metadata"]["labels"] = labels
        await client.create(CONFIG_MAPS, document)


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ("", "abcd"),
        ("kind=x", "ac"),
        ("kind==x,size=1", "a"),
        ("kind!=x", "bd"),
        ("kind in (x,y)", "abc"),
        ("kind in (x, y), size", "ab"),
        ("kind notin (x)", "bd"),
        ("size", "ab"),
        ("!size", "cd"),
        ("kind=", ""),
        ("none=", ""),
    ],
)
async def test_labels_select(client: Client, space: str, labels: str, wanted: str) -> None:
    await create_with_labels(client, space)
    result = await client.list(CONFIG_MAPS, ListOptions(space, labels=labels))
    assert "".join(names(result.items)) == wanted


async def test_a_selector_that_is_none_is_refused(client: Client, space: str) -> None:
    with pytest.raises(BadRequest):
        await client.list(CONFIG_MAPS, ListOptions(space, labels="a in b"))
    with pytest.raises(BadRequest, match="is not a known field selector"):
        await client.list(CONFIG_MAPS, ListOptions(space, fields="data.a=1"))
    with pytest.raises(BadRequest, match="field label not supported"):
        await client.list(PODS, ListOptions(space, fields="spec.hostname=1"))


async def test_fields_select(client: Client, space: str) -> None:
    for name in ("a", "b"):
        await client.create(PODS, pod(name, space))
    fresh = await client.get(PODS, "b", namespace=space)
    fresh["status"]["phase"] = "Running"
    await client.update(PODS, fresh, subresource="status")
    for fields, expected in (
        ("metadata.name=a", ["a"]),
        ("status.phase=Running", ["b"]),
        ("status.phase!=Running", ["a"]),
        ("spec.nodeName=", ["a", "b"]),
        ("metadata.name=a,status.phase=Running", []),
    ):
        result = await client.list(PODS, ListOptions(space, fields=fields))
        assert names(result.items) == expected, fields


async def test_one_namespace_or_all(client: Client, space: str) -> None:
    await client.create(CONFIG_MAPS, config_map("only-here", space))
    by_name = ListOptions(fields="metadata.name=only-here,metadata.namespace=" + space)
    result = await client.list(CONFIG_MAPS.with_model(Object), by_name)
    assert [item.key for item in result.items] == [(space, "only-here")]


async def test_items_of_a_builtin_list_have_no_kind(client: Client, space: str) -> None:
    await client.create(CONFIG_MAPS, config_map("one", space))
    (item,) = (await client.list(CONFIG_MAPS, ListOptions(space))).items
    assert "kind" not in item
    assert "apiVersion" not in item


async def test_parts_are_one_list_of_one_version(client: Client, space: str) -> None:
    for number in range(7):
        await client.create(CONFIG_MAPS, config_map(f"c{number}", space))
    first = await client.list_page(CONFIG_MAPS, ListOptions(space), limit=3)
    assert names(first.items) == ["c0", "c1", "c2"]
    assert first.remaining == 4
    # What changes between two parts does not show.
    await client.create(CONFIG_MAPS, config_map("c9", space))
    await client.delete(CONFIG_MAPS, "c4", namespace=space)
    second = await client.list_page(CONFIG_MAPS, ListOptions(space), limit=3, token=first.token)
    assert names(second.items) == ["c3", "c4", "c5"]
    third = await client.list_page(CONFIG_MAPS, ListOptions(space), limit=3, token=second.token)
    assert names(third.items) == ["c6"]
    assert not third.token
    assert {first.version, second.version, third.version} == {first.version}


async def test_a_long_list_is_requested_in_pages(client: Client, space: str) -> None:
    for number in range(5):
        await client.create(CONFIG_MAPS, config_map(f"c{number}", space))
    result = await client.list(CONFIG_MAPS, ListOptions(space), chunk=2)
    assert names(result.items) == [f"c{number}" for number in range(5)]


async def test_a_token_that_is_none_is_refused(client: Client, space: str) -> None:
    with pytest.raises((BadRequest, Gone)):
        await client.list_page(CONFIG_MAPS, ListOptions(space), limit=3, token="nonsense")


async def test_a_list_restarts_when_its_continue_token_has_expired(
    client: Client, server: ApiServer, space: str
) -> None:
    if server.fake is None:
        pytest.skip("a real server forgets after five minutes")
    for number in range(5):
        await client.create(CONFIG_MAPS, config_map(f"c{number}", space))
    first = await client.list_page(CONFIG_MAPS, ListOptions(space), limit=2)
    server.fake.cluster.expire_tokens()
    with pytest.raises(Gone):
        await client.list_page(CONFIG_MAPS, ListOptions(space), limit=2, token=first.token)


async def test_a_response_from_the_cache_is_complete(client: Client, space: str) -> None:
    for number in range(3):
        await client.create(CONFIG_MAPS, config_map(f"c{number}", space))
    listing = await client.list(CONFIG_MAPS, ListOptions(space))
    page = await client.list_page(CONFIG_MAPS, ListOptions(space), limit=2, version="0")
    assert not page.token
    assert len(page.items) <= len(listing.items)
