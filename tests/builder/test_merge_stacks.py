"""Merged stacks contain their common bottom layers once."""

from __future__ import annotations

from pathlib import Path

from danlu.builder.embedded.context import merge_stacks
from danlu.oci.digest import DiffId
from danlu.store import Layer


def stack(word: str) -> tuple[Layer, ...]:
    return tuple(Layer(DiffId(letter), 1, 1, letter, Path(letter)) for letter in word)


def names(word: tuple[Layer, ...]) -> str:
    return "".join(layer.diff_id for layer in word)


def test_only_shared_bottom_layers_are_merged() -> None:
    assert names(merge_stacks(map(stack, ["abc", "abd", "a", "ce"]))) == "abcdce"
    assert merge_stacks([]) == ()
