"""Prepare everything that one container needs on disk and in mounts, and remove it afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from danlu.errors import StoreError, UsageError
from danlu.oci.overlay import read_layer_xattrs
from danlu.sandbox import overlay, runtime_spec, userns
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.mounts import mount_devices
from danlu.sandbox.network_env import NetworkEnvironment
from danlu.sandbox.seccomp import load_filter
from danlu.sandbox.types import (
    ContainerEdits,
    JoinedNetwork,
    Mount,
    ProcessSpec,
    ResourceLimits,
    RootFilesystem,
)
from danlu.util.files import private_directory, remove_tree
from danlu.util.json_codec import encode

#: What starts a container's first process with a script, if the root has it.
SHELL = "/bin/sh"
_TERMINAL_GROUP = 5


class ContainerSpec(msgspec.Struct, frozen=True):
    """A container: its root, what it gets of this machine, and its first process.

    Attributes:
        process: The first process. With a network it also gets the variables of ``network_env``
            that it does not have.
        script: Of a shell, which starts the process as its ``"$@"``, if the root has a shell.
        mounts: Mount points that the root lacks never appear in the upper. A target may start with
            ``~/``, the process's home.
        network: The machine's (True), none (False), or one that exists already.
        edits: Of them everything is applied but what concerns single programs: variables and
            groups.
        shm_size: Bytes of ``/dev/shm``; 0 for the kernel's default.
        group: The name of a control group with ``limits`` to create; empty for none.
    """

    process: ProcessSpec
    root: RootFilesystem
    script: str = ""
    mounts: Sequence[Mount] = ()
    network: bool | JoinedNetwork = True
    network_env: NetworkEnvironment = NetworkEnvironment({})
    edits: ContainerEdits = ContainerEdits()
    shm_size: int = 0
    group: str = ""
    limits: ResourceLimits = ResourceLimits()


@contextmanager
def prepare_bundle(spec: ContainerSpec, *, work: Path, seccomp: str = "") -> Iterator[Path]:
    """Yield the directory of a runtime bundle below ``work``, on the store's file system.

    ``seccomp`` selects the filter (:func:`danlu.sandbox.seccomp.load_filter`). Raises
    :class:`UsageError` for an invalid mount.
    """
    process, root, network, edits = spec.process, spec.root, spec.network, spec.edits
    mounts = _order_mounts(expand_home(spec.mounts, process.environment.get("HOME", "/")))
    userns.require_id(process.uid, process.gid)
    if userns.has_single_id():
        process = msgspec.structs.replace(process, groups=())
    check_mounts((*edits.mounts, *mounts))
    bundle = private_directory(work, "run")
    try:
        view = LayerView(root.layers)
        if spec.script and has_shell(view):
            process = wrap_in_shell(process, spec.script)
        network_mounts = _select_network_mounts(spec.network_env, view) if network else ()
        all_mounts = (
            *_write_name_files(bundle, network=network),
            *network_mounts,
            # Before the user's: one at a parent directory hides these.
            *edits.mounts,
            *mounts,
        )
        layers = add_mount_points(root.layers, view, bundle, process, all_mounts, edits)
        with (
            overlay.mount_root(RootFilesystem(layers, root.upper, root.durable), bundle) as merged,
            mount_devices(bundle / "dev", edits.devices) as device_directory,
        ):
            _write_configuration(
                bundle,
                process if not network else _add_network_variables(process, spec.network_env),
                all_mounts,
                spec,
                merged=merged.resolve(),  # runtimes refuse a root below a symbolic link
                device_directory=device_directory,
                seccomp=seccomp,
            )
            yield bundle
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(
                f"no space left on device: {error.filename or work}",
                hint="free space with `danlu image prune`, or move the store with DANLU_HOME",
            ) from error
        raise
    finally:
        remove_tree(bundle)


def check_mounts(mounts: Sequence[Mount]) -> None:
    """Raise :class:`UsageError` for mounts with an invalid target or source."""
    for mount in mounts:
        parts = [part for part in mount.target.split("/") if part not in ("", ".")]
        if not mount.target.startswith("/") or ".." in parts or not parts:
            raise UsageError(
                f"invalid mount target {mount.target!r}", hint="use an absolute path: /data"
            )
        if parts[0] in ("proc", "sys") or parts == ["dev"]:
            raise UsageError(
                f"cannot mount at {mount.target}: the kernel's file systems are mounted there",
                hint="mount it somewhere else",
            )
        if mount.kind == "bind" and (mount.source is None or not mount.source.exists()):
            raise UsageError(
                f"cannot mount {mount.source}: it does not exist",
                hint="create it, or remove the mount",
            )


def expand_home(mounts: Iterable[Mount], home: str) -> tuple[Mount, ...]:
    """Return the mounts with ``~/`` at the start of a target replaced by ``home``."""
    return tuple(
        msgspec.structs.replace(mount, target=f"{home.rstrip('/')}/{mount.target[2:]}")
        if mount.target.startswith("~/")
        else mount
        for mount in mounts
    )


def _order_mounts(mounts: Iterable[Mount]) -> list[Mount]:
    """Return the mounts, parents before those below them."""
    # A mount hides what was mounted below its target before.
    return sorted(mounts, key=lambda mount: mount.target.rstrip("/").split("/"))


def has_shell(view: LayerView) -> bool:
    """Return whether a root has the shell that scripts need."""
    return view.entry(view.resolve(SHELL)) is not None


def wrap_in_shell(process: ProcessSpec, script: str) -> ProcessSpec:
    """Return the process started as ``"$@"`` of a shell script."""
    return msgspec.structs.replace(process, args=(SHELL, "-c", script, "danlu", *process.args))


def _select_network_mounts(network_env: NetworkEnvironment, view: LayerView) -> tuple[Mount, ...]:
    """Return the mounts of ``network_env`` without defaults for files that the image has."""
    kept = tuple(
        mount for mount in network_env.defaults if view.entry(view.resolve(mount.target)) is None
    )
    return (*network_env.mounts, *kept)


def _add_network_variables(process: ProcessSpec, network_env: NetworkEnvironment) -> ProcessSpec:
    environment = {**network_env.environment, **process.environment}
    return msgspec.structs.replace(process, environment=environment)


def _write_name_files(place: Path, *, network: bool | JoinedNetwork) -> tuple[Mount, ...]:
    """Write ``/etc/resolv.conf`` and ``/etc/hosts`` for the machine's network, a job's, or none."""
    local = "127.0.0.1 localhost{}\n::1 localhost ip6-localhost\n"
    texts = {"resolv.conf": "", "hosts": local.format(f" {runtime_spec.HOSTNAME}")}
    if isinstance(network, JoinedNetwork):
        lines = (f"{address} {name}\n" for name, address in network.hosts.items())
        texts = {"resolv.conf": network.resolver, "hosts": local.format("") + "".join(lines)}
    elif network:
        texts["resolv.conf"] = _read_host_file("/etc/resolv.conf")
        texts["hosts"] = (
            f"127.0.0.1 {runtime_spec.HOSTNAME}\n{_read_host_file('/etc/hosts') or texts['hosts']}"
        )
    for name, text in texts.items():
        (place / name).write_text(text)
        # Every user of the container must be able to read it, whatever our umask is.
        (place / name).chmod(0o644)
    return tuple(Mount(f"/etc/{name}", place / name, readonly=True) for name in texts)


def _read_host_file(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def add_mount_points(
    layers: tuple[Path, ...],
    view: LayerView,
    place: Path,
    process: ProcessSpec,
    mounts: Sequence[Mount],
    edits: ContainerEdits | None = None,
) -> tuple[Path, ...]:
    """Return ``layers`` with another on top, below ``place``, if they lack a mount point.

    It also contains the links and files of ``edits``.
    """
    points = [MountPoint(target, True) for target in ("/proc", "/dev", "/sys")]
    home = process.environment.get("HOME", "").rstrip("/")
    for mount in mounts:
        directory = mount.kind == "tmpfs" or mount.source is None or mount.source.is_dir()
        # The user must be able to write next to a mount in the home directory: in ~/.cache.
        is_own = bool(home) and mount.target.startswith(f"{home}/")
        owner = (process.uid, process.gid) if is_own else None
        points.append(MountPoint(mount.target, directory, owner))
    points.append(MountPoint(process.working_directory, True))
    layer = place / "points"
    layer.mkdir()
    edited = _apply_edits(edits, view, layer) if edits else False
    created = create_mount_points(view, points, layer)
    return (*layers, layer) if created or edited else layers


def _apply_edits(edits: ContainerEdits, view: LayerView, layer: Path) -> bool:
    """Create the links and files in the topmost ``layer``; return whether there are any."""
    view.add_directory((), str(layer))
    for path, target in edits.links.items():
        _replace_entry(view, path, layer).symlink_to(target)
    for path, content in edits.files.items():
        file = _replace_entry(view, path, layer)
        file.write_bytes(content)
        file.chmod(0o644)
    return bool(edits.links or edits.files)


def _replace_entry(view: LayerView, path: str, layer: Path) -> Path:
    """Return where to create the entry ``path`` in the topmost ``layer``; a link is replaced."""
    directory, _, name = path.rpartition("/")
    parts = view.resolve(directory)
    _make_parents(view, parts, layer, None)
    file = layer.joinpath(*parts, name)
    file.unlink(missing_ok=True)
    return file


def _write_configuration(
    place: Path,
    process: ProcessSpec,
    mounts: Sequence[Mount],
    spec: ContainerSpec,
    *,
    merged: Path,
    device_directory: Path,
    seccomp: str,
) -> None:
    network = spec.network
    joined = network if isinstance(network, JoinedNetwork) else None
    context = runtime_spec.SpecContext(
        root=merged,
        devices=device_directory,
        network=network is True,
        namespace=None if joined is None else joined.namespace,
        hostname=("" if joined is None else joined.host) or runtime_spec.HOSTNAME,
        terminal_group=None if userns.has_single_id() else _TERMINAL_GROUP,
        fresh_sysfs=not userns.is_rootless() or network is not True,
        seccomp=load_filter(seccomp, runtime_spec.CAPABILITIES),
        shm_size=spec.shm_size,
        hooks=spec.edits.hooks,
    )
    data = encode(runtime_spec.render_config(process, mounts, context))
    # The configuration contains the environment, which may contain secrets.
    descriptor = os.open(place / "config.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


class MountPoint(msgspec.Struct, frozen=True):
    """An absolute path that must exist, as a directory or as a file.

    ``owner`` gets the parent directories that do not exist yet; None is root.
    """

    target: str
    directory: bool
    owner: tuple[int, int] | None = None


def create_mount_points(view: LayerView, points: Iterable[MountPoint], layer: Path) -> bool:
    """Create the ``points`` that the root lacks in the topmost ``layer``; return whether any.

    Parent directories are copied with their attributes and owner, because those of the topmost
    layer are the visible ones. ``view`` includes the new entries afterwards.
    """
    created = False
    view.add_directory((), str(layer))
    for point in points:
        parts = view.resolve(point.target)
        if not parts or view.entry(parts) is not None:
            continue
        created = True
        _make_parents(view, parts[:-1], layer, point.owner)
        path = layer.joinpath(*parts)
        if point.directory:
            _make_directory(path)
            view.add_directory(parts, str(path))
        else:
            path.touch(mode=0o644)
    return created


def _make_parents(
    view: LayerView, parts: tuple[str, ...], layer: Path, owner: tuple[int, int] | None
) -> None:
    for count in range(1, len(parts) + 1):
        path = layer.joinpath(*parts[:count])
        if path.exists():
            continue
        model = view.entry(parts[:count])
        _make_directory(path)
        if model is not None:
            status = os.lstat(model)
            # An owner that is not mapped here cannot be set, and appears as nobody either way.
            with suppress(OSError):
                os.chown(path, status.st_uid, status.st_gid)
            os.chmod(path, status.st_mode & 0o7777)
            with suppress(OSError):
                for name, value in read_layer_xattrs(model).items():
                    os.setxattr(path, name, value)
        elif owner is not None:
            with suppress(OSError):
                os.chown(path, *owner)
        view.add_directory(parts[:count], str(path))


def _make_directory(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)
