"""The indexed store, and expectations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.kube.expectations import Expectations
from danlu.kube.store import Store, by_label, by_owner
from danlu.kube.types import Key, Object, ObjectMeta, OwnerReference
from danlu.testing.kubernetes import VirtualClock


def obj(name: str, *, owners: str = "", job: str = "", version: str = "1") -> Object:
    references = tuple(OwnerReference("v1", "Job", one, f"uid-{one}") for one in owners)
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
    return [one.metadata.name for one in found]


def test_objects_are_found_by_key_owner_and_label() -> None:
    store: Store[Object] = Store({"owner": by_owner, "job": by_label("job")})
    for one in (obj("a", owners="xy", job="j"), obj("b", owners="x"), obj("c", job="j")):
        store.put(one)
    assert store.get(Key("space", "a")) is not None
    assert names(store.by("owner", "uid-x")) == ["a", "b"]
    assert names(store.by("owner", "uid-y")) == ["a"]
    assert names(store.by("job", "space/j")) == ["a", "c"]
    assert store.by("job", "other/j") == []


def test_an_object_that_changes_is_found_where_it_is_now() -> None:
    store: Store[Object] = Store({"owner": by_owner})
    first = obj("a", owners="x")
    store.put(first)
    assert store.put(obj("a", owners="y")) is first
    assert store.by("owner", "uid-x") == []
    assert names(store.by("owner", "uid-y")) == ["a"]
    store.drop(Key("space", "a"))
    assert store.by("owner", "uid-y") == []
    assert len(store) == 0
    assert store.drop(Key("space", "a")) is None


def test_an_index_that_comes_later_finds_what_is_there() -> None:
    store: Store[Object] = Store({"owner": by_owner})
    store.put(obj("a", owners="x", job="j"))
    store.add_indexes({"job": by_label("job"), "owner": by_owner})
    assert names(store.by("job", "space/j")) == ["a"]
    assert names(store.by("owner", "uid-x")) == ["a"]
    with pytest.raises(ValueError, match="there already"):
        store.add_indexes({"owner": by_label("other")})


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["", "x", "y", "xy"]))))
def test_indexes_agree_with_the_objects(changes: list[tuple[str, str]]) -> None:
    store: Store[Object] = Store({"owner": by_owner})
    for name, owners in changes:
        if owners:
            store.put(obj(name, owners=owners))
        else:
            store.drop(Key("space", name))
        for owner in "xy":
            wanted = {one.key for one in store if f"uid-{owner}" in by_owner(one)}
            assert {one.key for one in store.by("owner", f"uid-{owner}")} == wanted
    if not len(store):
        assert not any(store._found.values())


def test_a_key_waits_for_all_that_it_expects() -> None:
    expected: Expectations[str] = Expectations(clock=VirtualClock())
    assert expected.satisfied("job")
    expected.expect_creation("job", ["a", "b"])
    expected.expect_deletion("job", ["uid-1"])
    assert not expected.satisfied("job")
    assert expected.satisfied("other")
    expected.created("job", "a")
    expected.created("job", "stranger")
    expected.created("job", "a")
    expected.deleted("job", "uid-2")
    assert not expected.satisfied("job")
    expected.created("job", "b")
    expected.deleted("job", "uid-1")
    assert expected.satisfied("job")
    assert len(expected) == 0


@pytest.mark.anyio
async def test_what_is_never_seen_is_not_waited_for_for_ever(clock: VirtualClock) -> None:
    expected: Expectations[str] = Expectations(clock=clock)
    expected.expect_creation("job", ["a"])
    await clock.advance(299)
    assert not expected.satisfied("job")
    await clock.advance(1)
    assert expected.satisfied("job")
    assert len(expected) == 0


def test_a_key_that_is_gone_expects_nothing() -> None:
    expected: Expectations[str] = Expectations(clock=VirtualClock())
    expected.expect_creation("job", ["a"])
    expected.forget("job")
    assert expected.satisfied("job")
