"""Informers on the fake: what handlers see, whatever happens to the watch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest

from danlu.errors import DanluError
from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig
from danlu.kube.errors import Gone
from danlu.kube.informer import Informer, index_by_label
from danlu.kube.resources import CONFIG_MAPS
from danlu.kube.types import Key, Object
from danlu.kube.watch import ListOptions
from tests.fakes.kubernetes import ApiFault, FakeKubernetes, VirtualClock
from tests.kube.objects import config_map, eventually

pytestmark = pytest.mark.anyio


class ConfigMap(Object, frozen=True, gc=False, rename="camel", omit_defaults=True):
    data: msgspec.Raw = msgspec.Raw(b"{}")


MAPS = CONFIG_MAPS.with_model(ConfigMap)
SPACE = ListOptions("default")


class RecordingHandler:
    """The calls of a handler as text: ``+name``, ``~name``, ``-name``."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.ended: list[ConfigMap] = []

    def __call__(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        sign = "+" if old is None else "-" if new is None else "~"
        output = new or old
        assert output is not None
        self.words.append(sign + output.metadata.name)
        if new is None and old is not None:
            self.ended.append(old)


@asynccontextmanager
async def running(informer: Informer[ConfigMap]) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        group.start_soon(informer.run)
        with anyio.fail_after(60):
            await informer.wait_for_cache_sync()
        yield
        group.cancel_scope.cancel()


async def make(kube: Client, *names: str, **data: str) -> None:
    for name in names:
        await kube.create(CONFIG_MAPS, config_map(name, "default", **data))


async def test_the_cache_is_complete_after_sync(kube: Client, fake: FakeKubernetes) -> None:
    await make(kube, "a", "b", "c")
    informer = Informer(kube, MAPS, SPACE, chunk=2)
    seen = RecordingHandler()
    informer.add_event_handler(seen)
    assert not informer.has_synced
    async with running(informer):
        assert seen.words == ["+a", "+b", "+c"]
        assert len(informer.indexer) == 3
    assert fake.counts["list", "configmaps"] == 2


async def test_handlers_are_called_after_the_indexer_is_updated(kube: Client) -> None:
    informer = Informer(kube, MAPS, SPACE)
    seen = RecordingHandler()
    informer.add_event_handler(seen)
    in_store: list[bool] = []
    informer.add_event_handler(
        lambda old, new: in_store.append(new is None or new in list(informer.indexer))
    )
    async with running(informer):
        await make(kube, "a")
        await kube.update(CONFIG_MAPS, config_map("a", "default", x="1"))
        await kube.delete(CONFIG_MAPS, "a", namespace="default")
        await eventually(lambda: len(seen.words) == 3)
    assert seen.words == ["+a", "~a", "-a"]
    assert all(in_store)
    assert bytes(seen.ended[0].data) == b'{"x":"1"}'


async def test_a_late_handler_receives_all_objects(kube: Client) -> None:
    await make(kube, "a", "b")
    informer = Informer(kube, MAPS, SPACE)
    async with running(informer):
        seen = RecordingHandler()
        informer.add_event_handler(seen)
        assert seen.words == ["+a", "+b"]


async def test_a_missed_deletion_is_reported_after_the_next_list(
    virtual_time_client: Client, fake: FakeKubernetes, clock: VirtualClock, kube: Client
) -> None:
    await make(kube, "a", "b", "c")
    informer = Informer(virtual_time_client, MAPS, SPACE)
    seen = RecordingHandler()
    informer.add_event_handler(seen)
    failures: list[DanluError] = []
    informer._on_failure = failures.append
    async with running(informer):
        await eventually(lambda: fake.watches == 1)
        fake.faults.append(ApiFault(verb="watch", times=1, status=503))
        fake.cluster.storage.end_watches()
        # An empty watch that ended at once is begun again after a pause.
        await eventually(lambda: fake.watches == 0)
        await kube.delete(CONFIG_MAPS, "b", namespace="default")
        await make(kube, "d")
        fake.cluster.storage.compact()
        await eventually_after(clock, lambda: "-b" in seen.words and "+d" in seen.words)
    assert seen.words == ["+a", "+b", "+c", "+d", "-b"]
    assert informer.list_count == 2
    assert any(isinstance(error, Gone) for error in failures)


async def eventually_after(clock: VirtualClock, claim: object) -> None:
    assert callable(claim)

    async def later() -> bool:
        await clock.advance(1.0)
        return bool(claim())

    await eventually(later, seconds=10)


async def test_an_object_that_was_replaced_ends_and_begins(
    virtual_time_client: Client, fake: FakeKubernetes, clock: VirtualClock, kube: Client
) -> None:
    await make(kube, "a")
    informer = Informer(virtual_time_client, MAPS, SPACE)
    seen = RecordingHandler()
    informer.add_event_handler(seen)
    async with running(informer):
        await eventually(lambda: fake.watches == 1)
        fake.cluster.storage.end_watches()
        await eventually(lambda: fake.watches == 0)
        await kube.delete(CONFIG_MAPS, "a", namespace="default")
        await make(kube, "a")
        fake.cluster.storage.compact()
        await eventually_after(clock, lambda: len(seen.words) == 3)
    assert seen.words == ["+a", "-a", "+a"]


async def test_a_broken_watch_continues_without_a_list(
    virtual_time_client: Client, fake: FakeKubernetes, clock: VirtualClock, kube: Client
) -> None:
    informer = Informer(virtual_time_client, MAPS, SPACE)
    seen = RecordingHandler()
    informer.add_event_handler(seen)
    async with running(informer):
        await eventually(lambda: fake.watches == 1)
        for name in ("a", "b", "c"):
            fake.cluster.storage.end_watches()
            await make(kube, name)
            await eventually_after(clock, lambda name=name: f"+{name}" in seen.words)
    assert seen.words == ["+a", "+b", "+c"]
    assert informer.list_count == 1


async def test_an_unreachable_server_is_retried_with_back_off(
    virtual_time_client: Client, fake: FakeKubernetes, clock: VirtualClock
) -> None:
    fake.faults.append(ApiFault(verb="list", times=1000, status=500))
    informer = Informer(virtual_time_client, MAPS, SPACE, draw=lambda: 0.0)
    async with anyio.create_task_group() as group:
        group.start_soon(informer.run)
        for second in range(300):
            del second
            await clock.advance(1.0)
            await anyio.sleep(0.001)
        asked = fake.counts["list", "configmaps"]
        # 0.8 s doubling to 30 s: some 5 in the first 30 s, then one in 30 s.
        assert 8 <= asked <= 20
        fake.faults.clear()
        await eventually_after(clock, lambda: informer.has_synced)
        group.cancel_scope.cancel()


async def test_bookmarks_keep_an_idle_watch_fresh(
    virtual_time_client: Client, fake: FakeKubernetes, clock: VirtualClock, kube: Client
) -> None:
    informer = Informer(virtual_time_client, MAPS, ListOptions("kube-public"))
    async with running(informer):
        await eventually(lambda: fake.watches == 1)
        await make(kube, "elsewhere")
        fake.bookmark()
        expected = str(fake.cluster.storage.version)
        await eventually(lambda: informer._version == expected)
        fake.cluster.storage.compact()
        fake.cluster.storage.end_watches()
        await eventually_after(clock, lambda: informer.watch_count == 2 and fake.watches == 1)
    assert informer.list_count == 1


async def test_a_list_whose_continue_token_expires_is_requested_without_pages(
    kube: Client, fake: FakeKubernetes
) -> None:
    await make(kube, *"abcd")
    fake.faults.append(ApiFault(verb="list", times=0))

    class ExpiringListClient(Client):
        async def list_page(self, *args: object, **options: object) -> object:  # type: ignore[override]
            if options.get("token"):
                fake.cluster.expire_tokens()
            return await super().list_page(*args, **options)  # type: ignore[arg-type]

    async with ExpiringListClient(kube.config) as client:
        informer = Informer(client, MAPS, SPACE, chunk=2)
        async with running(informer):
            assert len(informer.indexer) == 4


async def test_objects_are_found_by_index(kube: Client) -> None:
    document = config_map("a", "default")
    document["metadata"]["labels"] = {"job": "j"}
    await kube.create(CONFIG_MAPS, document)
    informer = Informer(kube, MAPS, SPACE, indexes={"job": index_by_label("job")})
    async with running(informer):
        (result,) = informer.indexer.by_index("job", "default/j")
        assert result.key == Key("default", "a")


async def test_raw_fields_are_kept_as_they_came(kube: Client) -> None:
    await make(kube, "a", x="1")
    informer = Informer(kube, MAPS, SPACE)
    async with running(informer):
        result = informer.indexer.get(Key("default", "a"))
        assert result is not None
        assert bytes(result.data) == b'{"x":"1"}'


async def test_the_first_of_several_failures_is_logged(
    fake: FakeKubernetes, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "danlu.kube.informer")
    fake.faults.append(ApiFault(verb="list", resource="configmaps", times=3, status=503))
    async with Client(ClusterConfig(server=fake.url), clock=clock) as client:
        informer = Informer(client, CONFIG_MAPS.with_model(Object))
        async with anyio.create_task_group() as group:
            group.start_soon(informer.run)
            while not informer.has_synced:
                await clock.advance(1)
                await anyio.sleep(0.002)
            group.cancel_scope.cancel()
    # Of this informer only: jobs of other tests may still write to the log.
    (message,) = (
        record.getMessage() for record in caplog.records if record.name == "danlu.kube.informer"
    )
    assert message.startswith("configmaps: ")
    assert message.endswith("; retrying")
