"""Archives of vendors: how a lock pins one, and how it becomes a layer.

A lock names an archive by its path below a mirror, its hash and its size. Which mirror that is,
every machine decides for itself (:mod:`danlu.sources.mirrors`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from danlu.errors import Span
from danlu.graph.ops import UnpackArchive
from danlu.graph.types import Vertex

_HEX = re.compile(r"[0-9a-f]{64}")


class LockedArchive(msgspec.Struct, frozen=True):
    """An archive: what it contains, and its path below any mirror of that name.

    ``mirror`` is a name of :mod:`danlu.sources.mirrors`; ``platform`` is the one that the archive
    is for (``linux/amd64``), empty if any.
    """

    name: str
    version: str
    mirror: str
    path: str
    sha256: str
    size: int
    platform: str = ""


def find_archive_problem(pin: LockedArchive) -> str:
    """Return what is wrong with a pin that was read from a file, or an empty string."""
    if not _HEX.fullmatch(pin.sha256):
        return f"archive {pin.name} has an invalid sha256"
    parts = pin.path.split("/")
    if "://" in pin.path or not pin.path.isprintable() or any(p in ("", ".", "..") for p in parts):
        return f"archive {pin.name} has an invalid path"
    return f"archive {pin.name} has an invalid size" if pin.size < 0 else ""


def make_archive_vertex(
    pin: LockedArchive,
    target: str,
    *,
    strip_components: int = 0,
    include: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    substitute: Sequence[tuple[str, str, str]] = (),
    branch: str = "tools",
    spans: tuple[Span, ...] = (),
) -> Vertex:
    """Return a vertex with the archive unpacked below ``target``, an absolute path.

    ``include``, ``rename`` and ``substitute`` are those of :class:`~danlu.graph.ops.UnpackArchive`.
    """
    op = UnpackArchive(
        mirror=pin.mirror,
        path=pin.path,
        sha256=pin.sha256,
        size=pin.size,
        target=target,
        strip_components=strip_components,
        include=tuple(include),
        rename=tuple(sorted((rename or {}).items())),
        substitute=tuple(substitute),
    )
    return Vertex(op, name=f"{pin.name} {pin.version}", branch=branch, spans=spans)
