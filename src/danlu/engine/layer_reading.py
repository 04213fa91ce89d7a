"""Read a writable layer without trusting it: no link is followed, and what is read is bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from danlu.sandbox.layer_view import LayerView
from danlu.util.files import read_regular_file

_MAX_READ = 16 << 20


def walk_layer(root: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all entries below ``root`` with their relative paths, links not followed."""
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        with os.scandir(root / prefix) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
        for entry in ordered:
            path = f"{prefix}{entry.name}"
            yield path, entry
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{path}/")


def list_parents(path: str) -> list[str]:
    """Return the directories above a relative path, from the top."""
    words = path.split("/")
    return ["/".join(words[:count]) for count in range(1, len(words))]


def read_text(path: Path) -> str | None:
    """Return the text of a regular file; None if it does not exist or is something else."""
    data = read_regular_file(path, _MAX_READ)
    return None if data is None else data.decode(errors="replace")


def read_lower(view: LayerView, path: str) -> str:
    """Return the text of a file of the image, empty if it does not exist."""
    place = view.entry(tuple(path.split("/")))
    return (read_text(Path(place)) or "") if place else ""


def has_linked_directory(upper: Path, path: str) -> bool:
    """Return whether a component of ``path`` is a link, which could lead out of the layer."""
    parts = path.split("/")
    return any((upper / "/".join(parts[:count])).is_symlink() for count in range(1, len(parts) + 1))
