"""How many layers the packages of a language become."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from danlu.graph.ops import Squash
from danlu.graph.types import Vertex

#: Above this number of packages, small groups of them share a layer.
_GROUP_ABOVE = 40
_GROUP_SIZE = 8


def group_packages(vertices: Mapping[str, Vertex]) -> tuple[Vertex, ...]:
    """Return the vertices, in groups of one layer each if there are many.

    As for wheels, the hash of a name decides whether a group ends after it.
    """
    if len(vertices) <= _GROUP_ABOVE:
        return tuple(vertices.values())
    groups: list[list[Vertex]] = [[]]
    for name, vertex in vertices.items():
        groups[-1].append(vertex)
        if hashlib.sha256(name.encode()).digest()[0] % _GROUP_SIZE == 0:
            groups.append([])
    return tuple(
        Vertex(
            Squash(),
            tuple(group),
            name=f"{group[0].name} … {group[-1].name}",
            branch=group[0].branch,
        )
        for group in groups
        if group
    )
