"""What a sandboxed process is given: a root file system of layers, mounts, a program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

__all__ = ["SYSTEM_PATH", "Mount", "Network", "Process", "Root"]


#: Where programs are looked for, inside unless the image or its environment says otherwise, and on
#: this machine after the caller's own PATH.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Mount(msgspec.Struct, frozen=True):
    """Something of this machine's, seen inside at ``target``.

    ``bind`` shows ``source`` (a file or a directory); ``tmpfs`` is empty memory. A mount point
    that the root lacks is made for the time of the run and leaves no trace in the layer.
    """

    target: str
    source: Path | None = None
    kind: Literal["bind", "tmpfs"] = "bind"
    readonly: bool = False


class Process(msgspec.Struct, frozen=True):
    """A program: argument vector, its whole environment, where and as whom it runs.

    ``terminal`` gives it a pseudo terminal, joined to ours.
    """

    args: tuple[str, ...]
    environment: Mapping[str, str] = {}
    working_directory: str = "/"
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    terminal: bool = False


class Root(msgspec.Struct, frozen=True):
    """A root file system: unpacked layer trees, lowest first, and where changes go.

    ``upper`` is an empty directory on the store's file system that holds the changes afterwards, in
    overlayfs's form; None throws them away.
    """

    layers: tuple[Path, ...]
    upper: Path | None = None


class Network(msgspec.Struct, frozen=True):
    """A network namespace made before (:mod:`danlu.sandbox.netns`), and the names known in it.

    ``namespace`` is a file that stands for it. ``host`` is the name inside, ``hosts`` are addresses
    by name, ``resolver`` is the text of ``/etc/resolv.conf``.
    """

    namespace: Path
    host: str
    hosts: Mapping[str, str] = {}
    resolver: str = ""
