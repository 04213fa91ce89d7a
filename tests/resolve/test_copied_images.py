"""Images of ``io.copy`` in the lock."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from msgspec.structs import replace

from danlu.environment.lock import LockedImage
from danlu.environment.types import Environment
from danlu.errors import OutsideError, Span
from danlu.lang.functions.steps import COPIED_IMAGES, CopyStep, RunStep
from tests.resolve.section_locker import SectionLocker

OLD, NEW = (f"sha256:{digit * 64}" for digit in "ab")
SPAN = Span("build.envd", 3)


class RegistryOfOneImage:
    """Resolves ``tools:1``, and records what it is asked for."""

    def __init__(self, changing: str = "") -> None:
        self.changing = changing
        self.asked: list[str] = []

    def may_change(self, name: str) -> bool:
        return name == self.changing

    async def resolve_image(self, reference: str) -> str:
        self.asked.append(reference)
        if reference != "tools:1":
            raise OutsideError(f"{reference} not found")
        return NEW


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    steps = (
        CopyStep("a", "/b"),
        RunStep(("make",)),
        CopyStep("/x", "/y", image="tools:1"),
        CopyStep("/z", "/y", image="tools:1"),
    )
    return replace(SectionLocker(tmp_path, {}).environment(), steps=steps)


def resolve(
    environment: Environment, registry: RegistryOfOneImage, *pins: LockedImage
) -> tuple[LockedImage, ...]:
    return anyio.run(COPIED_IMAGES.resolve, environment, pins, cast(Any, registry))


def test_each_image_is_resolved_once(environment: Environment) -> None:
    registry = RegistryOfOneImage()
    pins = resolve(environment, registry)
    assert pins == (LockedImage("tools:1", NEW),)
    assert registry.asked == ["tools:1"]
    assert not COPIED_IMAGES.is_stale(environment, pins)
    assert COPIED_IMAGES.is_stale(environment, ())
    assert COPIED_IMAGES.is_stale(environment, (*pins, LockedImage("other:1", NEW)))


@pytest.mark.parametrize(("changing", "digest"), [("", OLD), ("tools:1", NEW)])
def test_locked_image_is_kept_until_an_upgrade(
    environment: Environment, changing: str, digest: str
) -> None:
    pins = resolve(environment, RegistryOfOneImage(changing), LockedImage("tools:1", OLD))
    assert pins == (LockedImage("tools:1", digest),)


def test_image_that_is_not_found_has_the_line_of_its_step(environment: Environment) -> None:
    steps = (CopyStep("/x", "/y", image="absent:1", span=SPAN),)
    with pytest.raises(OutsideError) as caught:
        resolve(replace(environment, steps=steps), RegistryOfOneImage())
    assert caught.value.span == SPAN


def test_pin_that_was_edited_is_refused() -> None:
    assert COPIED_IMAGES.find_problem(LockedImage("tools:1", NEW)) == ""
    for digest in ("", "sha256:1", f"{NEW}0", NEW.upper()):
        assert COPIED_IMAGES.find_problem(LockedImage("tools:1", digest))
