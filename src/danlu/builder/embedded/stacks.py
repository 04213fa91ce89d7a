"""Stacks of layers put over one another."""

from __future__ import annotations

from collections.abc import Iterable

from danlu.store import Layer

__all__ = ["merged"]


def merged(stacks: Iterable[tuple[Layer, ...]]) -> tuple[Layer, ...]:
    """All of ``stacks`` in order, with what one shares at its bottom with those before it once."""
    whole: list[Layer] = []
    for stack in stacks:
        common = 0
        for below, layer in zip(whole, stack, strict=False):
            if below.diff_id != layer.diff_id:
                break
            common += 1
        whole.extend(stack[common:])
    return tuple(whole)
