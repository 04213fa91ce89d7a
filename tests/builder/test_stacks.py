"""Stacks over one another hold what they share at their bottom once."""

from __future__ import annotations

from pathlib import Path

from danlu.builder.embedded.stacks import merged
from danlu.oci.digest import DiffId
from danlu.store import Layer


def stack(word: str) -> tuple[Layer, ...]:
    return tuple(Layer(DiffId(one), 1, 1, one, Path(one)) for one in word)


def names(word: tuple[Layer, ...]) -> str:
    return "".join(layer.diff_id for layer in word)


def test_only_what_is_shared_at_the_bottom_is_there_once() -> None:
    assert names(merged(map(stack, ["abc", "abd", "a", "ce"]))) == "abcdce"
    assert merged([]) == ()
