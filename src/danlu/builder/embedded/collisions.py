"""Paths that several wheels of one environment have: allowed where their bytes are the same (D4).

Installers let one of the two win. Here each wheel is a layer, unpacked once for all environments,
so those that were not unpacked together are compared when they come together. Only directories
that several layers have are looked into: 5 ms for 70 wheels.
"""

from __future__ import annotations

import filecmp
import os
import posixpath
from collections.abc import Iterator, Sequence

from danlu.sources.pypi.record import read_record
from danlu.sources.pypi.splitting import collision
from danlu.store import Layer

__all__ = ["refuse_collisions"]

#: A layer, and its directory or entry at the path that is looked at.
_Entry = tuple[Layer, os.DirEntry[str]]


def refuse_collisions(layers: Sequence[Layer]) -> None:
    """Raise :class:`ResolveError` where two wheels' layers have one path with different bytes.

    It names the two packages and the path. Also one's file where another has a directory counts.
    """
    pending: list[tuple[str, list[tuple[Layer, str]]]]
    pending = [("", [(layer, str(layer.tree)) for layer in layers])]
    while pending:
        path, sharing = pending.pop()
        for name, owners in _shared(sharing):
            if all(entry.is_dir(follow_symlinks=False) for _, entry in owners):
                pending.append((f"{path}/{name}", [(one, entry.path) for one, entry in owners]))
            else:
                _refuse_different(f"{path}/{name}", owners)


def _shared(directories: Sequence[tuple[Layer, str]]) -> Iterator[tuple[str, list[_Entry]]]:
    """The names that several of ``directories`` have."""
    inside: dict[str, list[_Entry]] = {}
    for layer, directory in directories:
        with os.scandir(directory) as entries:
            for entry in entries:
                inside.setdefault(entry.name, []).append((layer, entry))
    return ((name, owners) for name, owners in inside.items() if len(owners) > 1)


def _refuse_different(path: str, owners: Sequence[_Entry]) -> None:
    layer, first = owners[0]
    for other, entry in owners[1:]:
        if not _same(first, entry):
            raise collision(_package(layer, path), _package(other, path), path)


def _same(one: os.DirEntry[str], other: os.DirEntry[str]) -> bool:
    if not (one.is_file(follow_symlinks=False) and other.is_file(follow_symlinks=False)):
        return False
    return one.inode() == other.inode() or filecmp.cmp(one.path, other.path, shallow=False)


def _package(layer: Layer, path: str) -> str:
    """Which package of ``layer`` has ``path``: one layer may hold many, each with its RECORD."""
    wanted = path.lstrip("/")
    # What a package brings of others, with their RECORDs, lies deeper than its own.
    listings = sorted(layer.tree.glob("**/*.dist-info/RECORD"), key=lambda one: len(one.parts))
    for listing in listings:
        site = listing.parent.parent.relative_to(layer.tree)
        name = listing.parent.name.partition("-")[0].replace("_", "-")
        text = listing.read_text(encoding="utf-8", errors="surrogateescape")
        for row in read_record(text, owner=name):
            listed = posixpath.normpath(posixpath.join(site, row.path))
            if listed == wanted or listed.startswith(f"{wanted}/"):
                return name
    return layer.created_by
