"""Added requirements are resolved separately, with the same result."""

from __future__ import annotations

from typing import Any

import pytest

from danlu.environment.lock import LockedPackage
from danlu.errors import ResolveError
from danlu.resolve.python import resolver as python_resolver
from tests.fakes.wheels import make_wheel
from tests.resolve.resolver import PythonResolver


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A call for each resolution of everything."""
    calls: list[object] = []
    ask = python_resolver._resolve_with_uv

    async def count_and_ask(task: Any, uv: Any) -> tuple[LockedPackage, ...]:
        calls.append(task)
        return await ask(task, uv)

    monkeypatch.setattr(python_resolver, "_resolve_with_uv", count_and_ask)
    return calls


def test_only_new_requirements_are_resolved(resolver: PythonResolver, whole: list[object]) -> None:
    make_wheel(resolver.links, "a", "1.0", requires=["shared"])
    make_wheel(resolver.links, "shared", "1.0")
    old = resolver(resolver.request("a"))
    assert len(whole) == 1
    make_wheel(resolver.links, "shared", "2.0")
    make_wheel(resolver.links, "b", "1.0", requires=["shared", "c"])
    make_wheel(resolver.links, "c", "1.0")
    new = resolver(resolver.request("a", "b"), old)
    assert resolver.pins(new) == ["a==1.0", "b==1.0", "c==1.0", "shared==1.0"]
    assert set(old) < set(new)
    assert len(whole) == 1


def test_an_extra_of_a_locked_package_is_added(
    resolver: PythonResolver, whole: list[object]
) -> None:
    make_wheel(resolver.links, "a", "1.0", requires=['c; extra == "more"'])
    make_wheel(resolver.links, "b", "1.0", requires=["a[more]"])
    make_wheel(resolver.links, "c", "1.0")
    old = resolver(resolver.request("a"))
    new = resolver(resolver.request("a", "b"), old)
    assert resolver.pins(new) == ["a==1.0", "b==1.0", "c==1.0"]
    assert len(whole) == 1


def test_an_addition_that_changes_a_locked_version_resolves_everything(
    resolver: PythonResolver, whole: list[object]
) -> None:
    for version in ("1.0", "2.0"):
        make_wheel(resolver.links, "shared", version)
    make_wheel(resolver.links, "a", "1.0", requires=["shared"])
    make_wheel(resolver.links, "b", "1.0", requires=["shared<2"])
    old = resolver(resolver.request("a"))
    assert resolver.pins(old) == ["a==1.0", "shared==2.0"]
    new = resolver(resolver.request("a", "b"), old)
    assert resolver.pins(new) == ["a==1.0", "b==1.0", "shared==1.0"]
    assert len(whole) == 2


def test_a_removed_requirement_resolves_everything(
    resolver: PythonResolver, whole: list[object]
) -> None:
    for name in ("a", "b", "c"):
        make_wheel(resolver.links, name, "1.0")
    old = resolver(resolver.request("a", "b"))
    assert resolver.pins(resolver(resolver.request("a", "c"), old)) == ["a==1.0", "c==1.0"]
    assert len(whole) == 2


def test_a_lock_from_another_machine_is_resolved_completely(
    resolver: PythonResolver, whole: list[object]
) -> None:
    for name in ("a", "b"):
        make_wheel(resolver.links, name, "1.0")
    other = LockedPackage("a", "1.0", "index", "a-1.0-py3-none-any.whl", "0" * 64, 1)
    assert resolver.pins(resolver(resolver.request("a", "b"), (other,))) == ["a==1.0", "b==1.0"]
    assert len(whole) == 1


def test_an_unsatisfiable_addition_reports_the_complete_error(
    resolver: PythonResolver, whole: list[object]
) -> None:
    make_wheel(resolver.links, "shared", "1.0")
    make_wheel(resolver.links, "a", "1.0", requires=["shared"])
    make_wheel(resolver.links, "b", "1.0", requires=["shared>=2"])
    old = resolver(resolver.request("a"))
    with pytest.raises(ResolveError) as caught:
        resolver(resolver.request("a", "b"), old)
    assert "shared" in " ".join(caught.value.details)
    assert len(whole) == 2
