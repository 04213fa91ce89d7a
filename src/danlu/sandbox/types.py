"""What a sandboxed process gets: a root file system of layers, mounts, a program, a network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

#: The default PATH inside, unless the image or its environment sets one, and the directories that
#: are searched on this machine after the user's own PATH.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: Where the project is mounted.
PROJECT_DIRECTORY = "/workspace"


class Mount(msgspec.Struct, frozen=True):
    """Something of this machine at ``target`` inside.

    ``bind`` shows ``source`` (a file or a directory); ``tmpfs`` is empty memory. A mount point that
    the root lacks exists only during the run and leaves no trace in the layer. ``private`` files
    are secrets: no copy of them may outlive the run.
    """

    target: str
    source: Path | None = None
    kind: Literal["bind", "tmpfs"] = "bind"
    readonly: bool = False
    private: bool = False


class ProcessSpec(msgspec.Struct, frozen=True):
    """A program: its arguments, its entire environment, where and as whom it runs.

    ``terminal`` gives it a pseudo terminal, connected to ours.
    """

    args: tuple[str, ...]
    environment: Mapping[str, str] = {}
    working_directory: str = "/"
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    terminal: bool = False


class RootFilesystem(msgspec.Struct, frozen=True):
    """Unpacked layers, lowest first, and where changes go.

    ``upper`` is a directory on the store's file system that receives the changes, in overlayfs's
    form; None discards them. With ``durable`` the upper outlives the machine: what programs sync
    is synced, which costs time.
    """

    layers: tuple[Path, ...]
    upper: Path | None = None
    durable: bool = False


class JoinedNetwork(msgspec.Struct, frozen=True):
    """An existing network namespace (:mod:`danlu.sandbox.netns`) and the host names known in it.

    ``namespace`` is the file that represents it. ``host`` is the host name inside, ``hosts`` are
    addresses by name, ``resolver`` is the content of ``/etc/resolv.conf``.
    """

    namespace: Path
    host: str
    hosts: Mapping[str, str] = {}
    resolver: str = ""
