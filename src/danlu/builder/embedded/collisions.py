"""Find paths where layers would break each other: two wheels, or a copy and the image below it.

Several wheels of an environment may contain a path with equal bytes only. Other installers silently
let one of the wheels win. Here each wheel is a layer that was unpacked once for all environments,
so layers are compared when they are merged. Only directories that several layers contain are
scanned: 5 ms for 70 wheels.

A copy is a layer that is made without the image below it. ``/bin`` of a Debian system is a link to
``usr/bin``: a layer with ``/bin/tool`` has a directory ``/bin``, which would hide the link, and the
shell with it. Only directories that both have are read.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence

from danlu.errors import UsageError
from danlu.sandbox.layer_view import LayerView
from danlu.sources.pypi.dist_info import read_record
from danlu.sources.pypi.split_wheels import collision_error, is_document
from danlu.store import Layer
from danlu.util.files import have_same_content

#: A layer and its directory entry at the current path.
_LayerEntry = tuple[Layer, os.DirEntry[str]]


def reject_collisions(layers: Sequence[Layer]) -> None:
    """Raise :class:`ResolveError` if two wheels contain a path with different bytes.

    The error names the packages and the path. A file and a directory at the same path count too.
    """
    pending: list[tuple[str, list[tuple[Layer, str]]]]
    pending = [("", [(layer, str(layer.tree)) for layer in layers])]
    while pending:
        path, directories = pending.pop()
        for name, owners in _find_shared_names(directories):
            if all(entry.is_dir(follow_symlinks=False) for _, entry in owners):
                pending.append((f"{path}/{name}", [(layer, entry.path) for layer, entry in owners]))
            else:
                _reject_different(f"{path}/{name}", owners)


def _find_shared_names(
    directories: Sequence[tuple[Layer, str]],
) -> Iterator[tuple[str, list[_LayerEntry]]]:
    """Return the names that several of ``directories`` contain, with their entries."""
    entries_by_name: dict[str, list[_LayerEntry]] = {}
    for layer, directory in directories:
        with os.scandir(directory) as entries:
            for entry in entries:
                entries_by_name.setdefault(entry.name, []).append((layer, entry))
    return ((name, owners) for name, owners in entries_by_name.items() if len(owners) > 1)


def _reject_different(path: str, owners: Sequence[_LayerEntry]) -> None:
    layer, first = owners[0]
    for other, entry in owners[1:]:
        if not is_document(path) and not _have_same_content(first, entry):
            raise collision_error(_find_package(layer, path), _find_package(other, path), path)


def _have_same_content(first: os.DirEntry[str], other: os.DirEntry[str]) -> bool:
    if not (first.is_file(follow_symlinks=False) and other.is_file(follow_symlinks=False)):
        return False
    return first.inode() == other.inode() or have_same_content(first.path, other.path)


def _find_package(layer: Layer, path: str) -> str:
    """Return the package of ``layer`` whose RECORD has ``path``; a layer may have many."""
    wanted = path.lstrip("/")
    # Packages vendored in another one have RECORDs at a deeper level than its own.
    listings = sorted(
        layer.tree.glob("**/*.dist-info/RECORD"), key=lambda listing: len(listing.parts)
    )
    for listing in listings:
        site = listing.parent.parent.relative_to(layer.tree)
        name = listing.parent.name.partition("-")[0].replace("_", "-")
        text = listing.read_text(encoding="utf-8", errors="surrogateescape")
        for row in read_record(text, owner=name):
            listed = posixpath.normpath(posixpath.join(site, row.path))
            if listed == wanted or listed.startswith(f"{wanted}/"):
                return name
    return layer.created_by


def reject_replacements(layers: Sequence[Layer], below: Sequence[Layer]) -> None:
    """Raise :class:`UsageError` if a path of ``layers`` replaces one of another kind in ``below``.

    Files, and links to files, may be replaced by files and links; directories are merged.
    """
    view = LayerView([layer.tree for layer in below])
    pending: list[tuple[tuple[str, ...], str]] = [((), str(layer.tree)) for layer in layers]
    while pending:
        parts, directory = pending.pop()
        with os.scandir(directory) as entries:
            for entry in entries:
                path = (*parts, entry.name)
                existing = view.entry(path)
                if existing is None:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if os.path.islink(existing) or not os.path.isdir(existing):
                        raise _replacement_error(path, existing, view)
                    pending.append((path, entry.path))
                elif view.directories(view.resolve("/".join(path))):
                    raise _replacement_error(path, existing, view)


def _replacement_error(path: tuple[str, ...], existing: str, view: LayerView) -> UsageError:
    name = "/" + "/".join(path)
    if os.path.islink(existing):
        resolved = "/" + "/".join(view.resolve(name))
        return UsageError(
            f"the copy would replace {name}, which is a link to {os.readlink(existing)} in the"
            " image",
            hint=f"copy to {resolved}/ instead of {name}",
        )
    if os.path.isdir(existing):
        return UsageError(
            f"the copy would replace the directory {name} of the image with a file",
            hint="end the target with / to copy into the directory",
        )
    return UsageError(
        f"the copy would replace the file {name} of the image with a directory",
        hint="choose another target",
    )
