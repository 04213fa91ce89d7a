"""Files that travel with a job in a ConfigMap: keys are numbers, volumes give them their paths.

A key of a ConfigMap is no path; ``items`` of a volume say where each comes to lie, as deep as one
likes.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from danlu.errors import UsageError
from danlu.util.human import format_size

__all__ = ["LIMIT", "Parcel", "files_below", "packed"]

LIMIT = 900 << 10
"""Bytes of files that are sent at most: a ConfigMap takes 1 MiB, with its keys and its metadata."""

# A copy belongs to whom the container runs as, who may then write to it.
_READABLE, _RUNNABLE = 0o644, 0o755
_SHOWN = 5


class Parcel(msgspec.Struct, frozen=True):
    """What a ConfigMap holds: ``data`` and ``binaryData``, and by a word the items of a volume."""

    data: Mapping[str, str] = {}
    binary: Mapping[str, str] = {}
    items: Mapping[str, tuple[Mapping[str, Any], ...]] = {}

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send."""
        return not any(self.items.values())


def packed(trees: Mapping[str, Mapping[str, Path]]) -> Parcel:
    """The files of ``trees`` (by a word, by their paths) as one parcel.

    Raises :class:`UsageError` for more than :data:`LIMIT`, naming the largest, and for files that
    cannot be read.
    """
    data: dict[str, str] = {}
    binary: dict[str, str] = {}
    items: dict[str, tuple[Mapping[str, Any], ...]] = {}
    sizes: dict[str, int] = {}
    for word, files in trees.items():
        found = []
        for number, (path, source) in enumerate(sorted(files.items())):
            key, content = f"{word}-{number:04}", _content(source)
            sizes[path] = len(content)
            _put(content, key, data, binary)
            mode = _RUNNABLE if os.access(source, os.X_OK) else _READABLE
            found.append({"key": key, "path": path, "mode": mode})
        items[word] = tuple(found)
    _check(sizes)
    return Parcel(data, binary, items)


def _put(content: bytes, key: str, data: dict[str, str], binary: dict[str, str]) -> None:
    try:
        # As text where it is some, so that a person can read what was sent.
        data[key] = content.decode()
    except UnicodeDecodeError:
        binary[key] = base64.b64encode(content).decode()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be sent with the job: {error.strerror}") from error


def _check(sizes: Mapping[str, int]) -> None:
    total = sum(sizes.values())
    if total <= LIMIT:
        return
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:_SHOWN]
    raise UsageError(
        f"{len(sizes)} files of {format_size(total)} would be sent with the job, and a ConfigMap"
        f" takes {format_size(LIMIT)}",
        details=tuple(f"{name}: {format_size(sizes[name])}" for name in largest),
        hint="have them in the image: copy them in the build file (io.copy), and give it by --env",
    )


def files_below(directory: Path) -> dict[str, Path]:
    """All files below a directory, by their paths in it."""
    return {str(one.relative_to(directory)): one for one in _sorted(directory.rglob("*"))}


def _sorted(paths: Iterable[Path]) -> list[Path]:
    return sorted(one for one in paths if one.is_file())
