"""What a sandboxed process gets: a root file system of layers, mounts, a program, a network."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
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


class DeviceNode(msgspec.Struct, frozen=True):
    """A device of this machine, as the node ``path`` (below ``/dev/``) of a container.

    ``source`` is the machine's node. Mode and owner are its own unless given; without root they
    cannot be changed.
    """

    path: str
    source: Path
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None


class RuntimeHook(msgspec.Struct, frozen=True, omit_defaults=True):
    """A program of this machine that the OCI runtime runs (runtime-spec, config.md, POSIX hooks).

    ``path`` is absolute; ``args`` include the program's name. ``timeout`` is in seconds.
    """

    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class ContainerEdits(msgspec.Struct, frozen=True):
    """What a device needs in a container, such as a GPU.

    Attributes:
        devices: Nodes in ``/dev``.
        mounts: Files and directories of this machine.
        links: Symbolic links: absolute path and target. Like mount points, they lie in a layer
            between the image and the writable layer, and disappear with the container.
        files: Contents of files by absolute path, in the same layer.
        hooks: Programs by the runtime's name for the moment (``createContainer``).
        environment: Variables that programs get unless the user sets them.
        groups: Further groups of programs.
    """

    devices: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    links: Mapping[str, str] = {}
    files: Mapping[str, bytes] = {}
    hooks: Mapping[str, tuple[RuntimeHook, ...]] = {}
    environment: Mapping[str, str] = {}
    groups: tuple[int, ...] = ()


class ProcessSpec(msgspec.Struct, frozen=True):
    """A program: its arguments, its entire environment, where and as whom it runs.

    ``terminal`` gives it a pseudo terminal, connected to ours. ``open_files`` are the soft and the
    hard limit of its open files, None for those of this process.
    """

    args: tuple[str, ...]
    environment: Mapping[str, str] = {}
    working_directory: str = "/"
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    terminal: bool = False
    open_files: tuple[int, int] | None = None


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


class ResourceLimits(msgspec.Struct, frozen=True):
    """Resource limits of a container: CPU cores, bytes of memory, indexes of visible GPUs."""

    cpu: float | None = None
    memory: int | None = None
    gpus: tuple[int, ...] = ()


class ContainerExit(msgspec.Struct, frozen=True):
    """How a container ended.

    ``code`` is 128+n for signal n. ``reason`` is ``OOMKilled``, ``Error``, ``Completed``, or
    ``StartError`` with a ``message`` if the container never started, or
    :data:`danlu.engine.types.CONNECTION_LOST`.
    ``time`` is set if the engine knows the end more precisely than the caller that waited.
    """

    code: int
    reason: str = ""
    message: str = ""
    time: datetime | None = None


class ResourceUsage(msgspec.Struct, frozen=True):
    """Resources used by a container's processes: CPU seconds so far, bytes of memory now."""

    cpu: float
    memory: int
