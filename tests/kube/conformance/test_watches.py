"""Watches: which events, in which order, from which version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from danlu.kube.client import Client
from danlu.kube.errors import Gone
from danlu.kube.patch import merge_patch
from danlu.kube.resources import CONFIG_MAPS, EVENTS, PODS
from danlu.kube.types import WatchEvent
from danlu.kube.watch import ListOptions
from tests.kube.objects import config_map, pod
from tests.kube.servers import ApiServer

pytestmark = pytest.mark.anyio
Event = WatchEvent[dict[str, Any]]


async def read_events(events: AsyncIterator[Event], count: int) -> list[Event]:
    results: list[Event] = []
    with anyio.fail_after(60):
        async for event in events:
            if event.kind != "BOOKMARK":
                results.append(event)
            if len(results) == count:
                break
    return results


def names(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.kind, event.object["metadata"]["name"]) for event in events if event.object]


async def test_a_watch_yields_all_changes_after_a_version_in_order(
    client: Client, space: str
) -> None:
    await client.create(CONFIG_MAPS, config_map("before", space))
    since = (await client.list(CONFIG_MAPS, ListOptions(space))).version
    await client.create(CONFIG_MAPS, config_map("one", space))
    await client.update(CONFIG_MAPS, config_map("one", space, a="1"))
    async with aclosing(client.watch(CONFIG_MAPS, ListOptions(space), since=since)) as events:
        first = await read_events(events, 2)
        await client.delete(CONFIG_MAPS, "one", namespace=space)
        await client.create(CONFIG_MAPS, config_map("two", space))
        later = await read_events(events, 2)
    assert names(first + later) == [
        ("ADDED", "one"),
        ("MODIFIED", "one"),
        ("DELETED", "one"),
        ("ADDED", "two"),
    ]
    versions = [int(event.version) for event in first + later]
    assert versions == sorted(set(versions))
    assert versions[0] > int(since)


async def test_a_watch_continues_from_the_version_of_its_last_event(
    client: Client, space: str
) -> None:
    since = (await client.list(CONFIG_MAPS, ListOptions(space))).version
    for name in ("a", "b", "c"):
        await client.create(CONFIG_MAPS, config_map(name, space))
    async with aclosing(client.watch(CONFIG_MAPS, ListOptions(space), since=since)) as events:
        (first,) = await read_events(events, 1)
    again = client.watch(CONFIG_MAPS, ListOptions(space), since=first.version)
    async with aclosing(again) as events:
        assert names(await read_events(events, 2)) == [("ADDED", "b"), ("ADDED", "c")]


async def test_a_watch_without_a_version_starts_with_existing_objects(
    client: Client, server: ApiServer, space: str
) -> None:
    server.require_watch_progress()
    for name in ("a", "b"):
        await client.create(CONFIG_MAPS, config_map(name, space))
    async with aclosing(client.watch(CONFIG_MAPS, ListOptions(space), since="0")) as events:
        result = names(await read_events(events, 2))
        await client.create(CONFIG_MAPS, config_map("c", space))
        result += names(await read_events(events, 1))
    assert sorted(result) == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]


async def test_label_selectors_filter_a_watch(client: Client, space: str) -> None:
    since = (await client.list(CONFIG_MAPS, ListOptions(space))).version
    selection = ListOptions(space, labels="chosen=yes")
    async with aclosing(client.watch(CONFIG_MAPS, selection, since=since)) as events:
        document = config_map("one", space)
        await client.create(CONFIG_MAPS, document)
        for chosen in ("yes", "yes", "no", "yes"):
            patch = {"metadata": {"labels": {"chosen": chosen}}, "data": {"a": chosen + "!"}}
            await client.patch(CONFIG_MAPS, "one", merge_patch(patch), namespace=space)
        await client.patch(CONFIG_MAPS, "one", merge_patch({"data": {"b": "1"}}), namespace=space)
        result = await read_events(events, 4)
    assert names(result) == [
        ("ADDED", "one"),
        ("DELETED", "one"),
        ("ADDED", "one"),
        ("MODIFIED", "one"),
    ]
    gone = result[1].object
    assert gone is not None
    assert gone["metadata"]["labels"] == {"chosen": "yes"}
    assert gone["metadata"]["resourceVersion"] == result[1].version


async def test_field_selectors_filter_a_watch(client: Client, space: str) -> None:
    since = (await client.list(PODS, ListOptions(space))).version
    selection = ListOptions(space, fields="status.phase=Running")
    async with aclosing(client.watch(PODS, selection, since=since)) as events:
        await client.create(PODS, pod("one", space))
        for phase in ("Running", "Succeeded"):
            patch = merge_patch({"status": {"phase": phase}})
            await client.patch(PODS, "one", patch, namespace=space, subresource="status")
        assert names(await read_events(events, 2)) == [("ADDED", "one"), ("DELETED", "one")]


async def test_a_watch_of_a_namespace_ignores_others(client: Client, space: str) -> None:
    since = (await client.list(CONFIG_MAPS, ListOptions(space))).version
    async with aclosing(client.watch(CONFIG_MAPS, ListOptions(space), since=since)) as events:
        await client.create_or_patch(CONFIG_MAPS, config_map(f"other-{space}", "default"))
        await client.create(CONFIG_MAPS, config_map("mine", space))
        assert names(await read_events(events, 1)) == [("ADDED", "mine")]


async def test_a_watch_ends_when_its_time_is_over_with_a_bookmark(
    client: Client, space: str
) -> None:
    since = (await client.list(CONFIG_MAPS, ListOptions(space))).version
    await client.create(CONFIG_MAPS, config_map("one", space))
    # The bookmark comes up to two seconds before the end, and the changes must come before it.
    watch = client.watch(CONFIG_MAPS, ListOptions(space), since=since, seconds=5)
    async with aclosing(watch) as events:
        (first,) = await read_events(events, 1)
        # A real server sends none that says nothing new, so the kind changes elsewhere too.
        other = await client.create(CONFIG_MAPS, config_map(f"other-{space}", "default"))
        rest = [event async for event in events]
    assert first.kind == "ADDED"
    assert {event.kind for event in rest} == {"BOOKMARK"}
    assert int(rest[-1].version) >= int(other["metadata"]["resourceVersion"])
    assert rest[-1].object is None


async def test_no_bookmarks_unless_requested(client: Client, server: ApiServer, space: str) -> None:
    since = (await client.list(CONFIG_MAPS, ListOptions(space))).version
    seconds = 2 if server.fake is None else 1
    watch = client.watch(
        CONFIG_MAPS, ListOptions(space), since=since, seconds=seconds, bookmarks=False
    )
    assert [event async for event in watch] == []


async def test_a_version_that_is_too_old_is_gone(
    client: Client, server: ApiServer, space: str
) -> None:
    # Of events alone a real server keeps no changes in memory, but asks etcd.
    since = (await client.list(EVENTS, ListOptions(space))).version
    await client.create(CONFIG_MAPS, config_map("one", space))
    await client.delete(CONFIG_MAPS, "one", namespace=space)
    last = (await client.list(EVENTS, ListOptions(space))).version
    server.compact(int(last))
    with pytest.raises(Gone, match="too old"):
        async for _ in client.watch(EVENTS, ListOptions(space), since=since):
            pass


async def test_a_deletion_event_has_the_last_state_of_the_object(
    client: Client, space: str
) -> None:
    since = (await client.list(CONFIG_MAPS, ListOptions(space))).version
    result = await client.create(CONFIG_MAPS, config_map("one", space, a="1"))
    await client.delete(CONFIG_MAPS, "one", namespace=space)
    async with aclosing(client.watch(CONFIG_MAPS, ListOptions(space), since=since)) as events:
        _, deleted = await read_events(events, 2)
    assert deleted.object is not None
    assert deleted.object["data"] == {"a": "1"}
    assert deleted.object["metadata"]["uid"] == result["metadata"]["uid"]
    assert int(deleted.version) > int(result["metadata"]["resourceVersion"])
