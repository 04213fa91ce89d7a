"""The indexer, and expectations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.kube.expectations import Expectations
from danlu.kube.informer import Indexer, index_by_label, index_by_owner
from danlu.kube.types import Key, Object, ObjectMeta, OwnerReference
from tests.fakes.kubernetes import VirtualClock


def obj(name: str, *, owners: str = "", job: str = "", version: str = "1") -> Object:
    references = tuple(OwnerReference("v1", "Job", owner, f"uid-{owner}") for owner in owners)
    labels = {"job": job} if job else {}
    return Object(
        ObjectMeta(
            name=name,
            namespace="space",
            resource_version=version,
            labels=labels,
            owner_references=references,
        )
    )


def names(found: list[Object]) -> list[str]:
    return [obj.metadata.name for obj in found]


def test_objects_are_found_by_key_owner_and_label() -> None:
    store: Indexer[Object] = Indexer({"owner": index_by_owner, "job": index_by_label("job")})
    for added in (obj("a", owners="xy", job="j"), obj("b", owners="x"), obj("c", job="j")):
        store.update(added)
    assert store.get(Key("space", "a")) is not None
    assert names(store.by_index("owner", "uid-x")) == ["a", "b"]
    assert names(store.by_index("owner", "uid-y")) == ["a"]
    assert names(store.by_index("job", "space/j")) == ["a", "c"]
    assert store.by_index("job", "other/j") == []


def test_a_changed_object_is_found_by_its_new_index_value() -> None:
    store: Indexer[Object] = Indexer({"owner": index_by_owner})
    first = obj("a", owners="x")
    store.update(first)
    assert store.update(obj("a", owners="y")) is first
    assert store.by_index("owner", "uid-x") == []
    assert names(store.by_index("owner", "uid-y")) == ["a"]
    store.delete(Key("space", "a"))
    assert store.by_index("owner", "uid-y") == []
    assert len(store) == 0
    assert store.delete(Key("space", "a")) is None


def test_an_index_that_is_added_later_finds_existing_objects() -> None:
    store: Indexer[Object] = Indexer({"owner": index_by_owner})
    store.update(obj("a", owners="x", job="j"))
    store.add_indexes({"job": index_by_label("job"), "owner": index_by_owner})
    assert names(store.by_index("job", "space/j")) == ["a"]
    assert names(store.by_index("owner", "uid-x")) == ["a"]
    with pytest.raises(ValueError, match="already exists"):
        store.add_indexes({"owner": index_by_label("other")})


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["", "x", "y", "xy"]))))
def test_indexes_agree_with_the_objects(changes: list[tuple[str, str]]) -> None:
    store: Indexer[Object] = Indexer({"owner": index_by_owner})
    for name, owners in changes:
        if owners:
            store.update(obj(name, owners=owners))
        else:
            store.delete(Key("space", name))
        for owner in "xy":
            expected = {obj.key for obj in store if f"uid-{owner}" in index_by_owner(obj)}
            assert {obj.key for obj in store.by_index("owner", f"uid-{owner}")} == expected
    if not len(store):
        assert not any(store._indices.values())


def test_a_key_waits_for_all_expected_objects() -> None:
    expected: Expectations[str] = Expectations(clock=VirtualClock())
    assert not expected.has_pending("job")
    expected.expect_creation("job", ["a", "b"])
    expected.expect_deletion("job", ["uid-1"])
    assert expected.has_pending("job")
    assert not expected.has_pending("other")
    expected.observe_creation("job", "a")
    expected.observe_creation("job", "stranger")
    expected.observe_creation("job", "a")
    expected.observe_deletion("job", "uid-2")
    assert expected.has_pending("job")
    expected.observe_creation("job", "b")
    expected.observe_deletion("job", "uid-1")
    assert not expected.has_pending("job")
    assert len(expected) == 0


@pytest.mark.anyio
async def test_expectations_time_out(clock: VirtualClock) -> None:
    expected: Expectations[str] = Expectations(clock=clock)
    expected.expect_creation("job", ["a"])
    await clock.advance(299)
    assert expected.has_pending("job")
    await clock.advance(1)
    assert not expected.has_pending("job")
    assert len(expected) == 0


def test_a_key_that_is_gone_expects_nothing() -> None:
    expected: Expectations[str] = Expectations(clock=VirtualClock())
    expected.expect_creation("job", ["a"])
    expected.forget("job")
    assert not expected.has_pending("job")
