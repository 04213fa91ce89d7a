"""The build graph: frozen ops, the vertices that carry them, and their digests.

An *op* says what is to be done and nothing of how. A *vertex* is an op with its inputs, a name
people read and the lines of the build file it came from; name and lines are not part of its
digest. A vertex evaluates to a **stack**: layers, lowest first. Ops of three kinds exist:

* *roots* give a stack out of nothing: :class:`ImageSource`, :class:`Bootstrap`;
* *leaves* give one layer that does not depend on what lies below it (it may be laid over
  anything): :class:`Wheel`, :class:`Files`, :class:`CopyContext`, :class:`CopyImage`,
  :class:`HttpFile`;
* *steps* run in the stack of their first input and give that stack with one layer more:
  :class:`AptInstall`, :class:`Exec`; :class:`BuildWheel` runs in a stack too, and gives a wheel
  file (no layer) to the :class:`Wheel` that has it as its input;

and :class:`Merge` lays the stacks of its inputs over one another, in order, less what an input
has in common with what is already there at the bottom; :class:`Squash` makes one layer of leaves.

Everything in an op is part of its vertex's digest, so an op holds only what changes the bytes
it makes: no mirror addresses, no host paths, no names of people or machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import msgspec

from danlu.errors import Span
from danlu.graph.imageconfig import ImageConfig

__all__ = [
    "WHEEL_TIME",
    "AptInstall",
    "Bootstrap",
    "BuildWheel",
    "Bytecode",
    "CopyContext",
    "CopyImage",
    "Deb",
    "Exec",
    "FileEntry",
    "Files",
    "Graph",
    "HttpFile",
    "ImageConfig",
    "ImageSource",
    "Merge",
    "Op",
    "Platform",
    "Scheme",
    "SecretMount",
    "Squash",
    "Unbuilt",
    "Unresolved",
    "Vertex",
    "Wheel",
    "WheelSource",
]


#: The modification time of everything in wheel layers: 1980-01-01, the oldest a zip can hold.
WHEEL_TIME = 315532800


class Platform(msgspec.Struct, frozen=True):
    """What an image runs on, in OCI's words: ``linux``/``amd64``."""

    os: str = "linux"
    architecture: str = "amd64"
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)


class Deb(msgspec.Struct, frozen=True):
    """One binary package file of a Debian-style archive.

    ``archive`` is the suite that has it (``bookworm``, ``bookworm-security``); ``path`` its place
    below that archive's root (``pool/main/…``), the same on every mirror; ``size`` in bytes.
    """

    name: str
    version: str
    architecture: str
    sha256: str
    size: int
    archive: str
    path: str


class Scheme(msgspec.Struct, frozen=True):
    """Where Python packages go, and the interpreter their scripts name.

    ``prefix`` is a virtual environment (``/opt/venv``); ``site_packages`` is relative to it
    (``lib/python3.11/site-packages``); ``interpreter`` is the path written in scripts' first
    lines (``/opt/venv/bin/python``).
    """

    prefix: str
    version: str
    site_packages: str
    interpreter: str


class WheelSource(msgspec.Struct, frozen=True):
    """Where a wheel's bytes come from when they are not yet in the store.

    ``kind`` is ``index`` (by name, version and hash from the user's indexes and find-links),
    ``local`` (``location`` is a path relative to the project), ``url`` (``location`` is the
    address in the user's file) or ``built`` (by the vertex's :class:`BuildWheel` input).
    """

    kind: Literal["index", "local", "url", "built"]
    location: str = ""


class ImageSource(msgspec.Struct, frozen=True):
    """An image of a registry, by the digest of its manifest for the platform."""

    reference: str
    digest: str
    platform: Platform


class Bootstrap(msgspec.Struct, frozen=True):
    """A minimal distribution made of exactly these packages; ``epoch`` in seconds (UTC)."""

    distribution: str
    codename: str
    packages: tuple[Deb, ...]
    epoch: int


class AptInstall(msgspec.Struct, frozen=True):
    """Exactly ``packages`` installed by apt; ``requested`` are those marked as manual."""

    packages: tuple[Deb, ...]
    requested: tuple[str, ...]
    epoch: int
    codename: str = ""


class Wheel(msgspec.Struct, frozen=True):
    """One wheel, unpacked under a scheme: one layer, the same below whatever base."""

    name: str
    version: str
    file: str
    sha256: str
    source: WheelSource
    scheme: Scheme


class BuildWheel(msgspec.Struct, frozen=True):
    """A wheel built in the sandbox from a source distribution or a checkout.

    ``source`` is ``sdist`` (by name, version and hash from the user's indexes), ``local`` (a
    directory or archive of the project), ``url`` or ``git`` (``commit`` is the full object name);
    ``sha256`` is the hash of the archive, or of the tree for ``local`` directories and ``git``.
    """

    name: str
    version: str
    source: Literal["sdist", "local", "url", "git"]
    location: str
    sha256: str
    file: str
    commit: str
    subdirectory: str
    scheme: Scheme
    epoch: int


class Bytecode(msgspec.Struct, frozen=True):
    """The byte code of the packages below it, compiled by the image's own interpreter."""

    interpreter: str
    roots: tuple[str, ...]


class FileEntry(msgspec.Struct, frozen=True):
    """One file, directory or symbolic link that danlu itself writes.

    ``path`` is absolute; ``kind`` is ``file`` (with ``content``), ``dir`` or ``link`` (with
    ``target``); ``mode`` the permission bits.
    """

    path: str
    kind: Literal["file", "dir", "link"] = "file"
    content: str = ""
    target: str = ""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0


class Files(msgspec.Struct, frozen=True):
    """Files danlu writes, as one layer; parents that are not listed are 0755 root:root."""

    entries: tuple[FileEntry, ...]
    epoch: int


class CopyContext(msgspec.Struct, frozen=True):
    """Files of the project: ``source`` relative to it, ``digest`` of what is copied.

    ``source`` may be a file, a directory (its *content* goes to ``target``, as Dockerfile's COPY
    does) or a pattern; a ``target`` that ends in ``/`` is a directory. ``uid`` and ``gid`` own
    the copy.
    """

    source: str
    target: str
    digest: str
    uid: int
    gid: int
    epoch: int


class CopyImage(msgspec.Struct, frozen=True):
    """Files of another image (the stack of the vertex's input), as one layer."""

    source: str
    target: str
    uid: int
    gid: int
    epoch: int


class HttpFile(msgspec.Struct, frozen=True):
    """A file fetched by HTTP, verified by its locked hash, written to ``target``."""

    url: str
    sha256: str
    target: str
    epoch: int
    mode: int = 0o644
    uid: int = 0
    gid: int = 0


class SecretMount(msgspec.Struct, frozen=True):
    """A secret a step may read at ``target``; its value is never part of anything kept."""

    id: str
    target: str


class Exec(msgspec.Struct, frozen=True):
    """A command run in the stack below it.

    ``args`` is the argument vector; ``environment`` is laid over the base image's, ``path`` goes
    before its PATH; ``context`` asks for the project read-only at ``working_directory`` and then
    ``context_digest`` names its content; ``uid`` and ``gid`` run it.
    """

    args: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    working_directory: str
    epoch: int
    path: tuple[str, ...] = ()
    uid: int = 0
    gid: int = 0
    secrets: tuple[SecretMount, ...] = ()
    ssh: bool = False
    context: bool = False
    context_digest: str = ""


class Merge(msgspec.Struct, frozen=True):
    """The stacks of the inputs over one another, in order."""


class Squash(msgspec.Struct, frozen=True):
    """The layers of the inputs as one layer (leaves only), where single ones would be too many."""


class Unresolved(msgspec.Struct, frozen=True):
    """A source that no lock has pinned yet; ``describes`` says it in the user's words."""

    kind: str
    describes: tuple[str, ...]


class Unbuilt(msgspec.Struct, frozen=True):
    """A function of the language that this version plans but does not build."""

    function: str
    arguments: tuple[tuple[str, str], ...]


Op = (
    ImageSource
    | Bootstrap
    | AptInstall
    | Wheel
    | BuildWheel
    | Bytecode
    | Files
    | CopyContext
    | CopyImage
    | HttpFile
    | Exec
    | Merge
    | Squash
    | Unresolved
    | Unbuilt
)


@dataclass(frozen=True)
class Vertex:
    """An op, what it stands on, and how people know it.

    ``branch`` groups vertices in the progress tree (``base``, ``system``, ``python``, ``steps``).
    Two vertices with equal ops and inputs have one digest whatever their names and spans.
    """

    op: Op
    inputs: tuple[Vertex, ...] = ()
    name: str = field(default="", compare=False)
    branch: str = field(default="", compare=False)
    spans: tuple[Span, ...] = field(default=(), compare=False)

    @cached_property
    def digest(self) -> str:
        """``sha256:…`` over the op and the inputs' digests."""
        from danlu.graph.digest import vertex_digest

        return vertex_digest(self)


@dataclass(frozen=True)
class Graph:
    """A whole build: the vertex whose stack is the image, and the image's configuration.

    ``config`` is laid over the configuration of the base image, if the root has one.
    ``epoch`` is the image's creation time, seconds (UTC).
    """

    root: Vertex
    config: ImageConfig
    platform: Platform
    epoch: int

    def walk(self) -> Iterator[Vertex]:
        """Every vertex once, inputs before those that stand on them."""
        from danlu.graph.digest import topological

        return topological(self.root)

    @cached_property
    def digest(self) -> str:
        """``sha256:…`` over the root, the configuration, the platform and the epoch."""
        from danlu.graph.digest import graph_digest

        return graph_digest(self)

    def by_branch(self) -> Mapping[str, tuple[Vertex, ...]]:
        """The vertices of each branch, in the order of :meth:`walk`."""
        branches: dict[str, list[Vertex]] = {}
        for vertex in self.walk():
            branches.setdefault(vertex.branch, []).append(vertex)
        return {name: tuple(vertices) for name, vertices in branches.items()}
