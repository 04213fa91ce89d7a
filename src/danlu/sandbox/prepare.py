"""Everything one run needs on disk and in mounts, made before it and gone after it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from danlu.errors import StoreError, UsageError
from danlu.sandbox import bundle, devices, overlay, scaffold, userns
from danlu.sandbox.trust import Trust
from danlu.sandbox.types import Mount, Network, Process, Root
from danlu.sandbox.union import Union
from danlu.util.files import private_directory, remove_tree

__all__ = ["check", "prepared"]

_SHELL = "/bin/sh"
_TERMINAL_GROUP = 5


@contextmanager
def prepared(
    process: Process,
    root: Root,
    *,
    mounts: Sequence[Mount],
    trust: Trust,
    network: bool | Network,
    work: Path,
    shell: str = "",
) -> Iterator[Path]:
    """Give the directory of a runtime bundle while the context lasts.

    Mount points that the root lacks lie in a layer of their own, so the upper never shows them.
    ``network`` is the machine's, none, or one made before.
    ``shell`` is a script that starts the program, its ``"$@"``, where the root has a shell.
    """
    userns.require_id(process.uid, process.gid)
    if userns.single_id():
        process = msgspec.structs.replace(process, groups=())
    check(mounts)
    place = private_directory(work, "run")
    try:
        union = Union(root.layers)
        process = _by_shell(process, union, shell)
        given = _absent_only(trust, union) if network else ()
        everything = (*_name_files(place, network=network), *given, *mounts)
        layers = _with_mount_points(root.layers, union, place, process, everything)
        with (
            overlay.mounted(Root(layers, root.upper), place) as merged,
            devices.mounted(place / "dev") as device_directory,
        ):
            _write_configuration(
                place,
                process if not network else _trusting(process, trust),
                everything,
                merged=merged,
                device_directory=device_directory,
                network=network,
            )
            yield place
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreError(
                f"the disk is full: {error.filename or work}",
                hint="`danlu image prune` makes room; DANLU_HOME moves the store",
            ) from error
        raise
    finally:
        remove_tree(place)


def check(mounts: Sequence[Mount]) -> None:
    """Refuse mounts whose target or source cannot be; raises :class:`UsageError`."""
    for mount in mounts:
        parts = [part for part in mount.target.split("/") if part not in ("", ".")]
        if not mount.target.startswith("/") or ".." in parts or not parts:
            raise UsageError(f"{mount.target!r} is no place to mount at", hint="name a path: /data")
        if parts[0] in ("proc", "sys") or parts == ["dev"]:
            raise UsageError(
                f"nothing can be mounted at {mount.target}: the kernel's files are there"
            )
        if mount.kind == "bind" and (mount.source is None or not mount.source.exists()):
            raise UsageError(f"{mount.source} is not there to be mounted")


def _by_shell(process: Process, union: Union, script: str) -> Process:
    if not script or union.entry(union.resolve(_SHELL)) is None:
        return process
    return msgspec.structs.replace(process, args=(_SHELL, "-c", script, "danlu", *process.args))


def _absent_only(trust: Trust, union: Union) -> tuple[Mount, ...]:
    """The mounts of ``trust``, without the defaults for which the image has a file of its own."""
    kept = tuple(
        mount for mount in trust.defaults if union.entry(union.resolve(mount.target)) is None
    )
    return (*trust.mounts, *kept)


def _trusting(process: Process, trust: Trust) -> Process:
    environment = {**trust.environment, **process.environment}
    return msgspec.structs.replace(process, environment=environment)


def _name_files(place: Path, *, network: bool | Network) -> tuple[Mount, ...]:
    """``/etc/resolv.conf`` and ``/etc/hosts`` of this machine, of a network, or of none."""
    local = "127.0.0.1 localhost{}\n::1 localhost ip6-localhost\n"
    texts = {"resolv.conf": "", "hosts": local.format(f" {bundle.HOSTNAME}")}
    if isinstance(network, Network):
        lines = (f"{address} {name}\n" for name, address in network.hosts.items())
        texts = {"resolv.conf": network.resolver, "hosts": local.format("") + "".join(lines)}
    elif network:
        texts["resolv.conf"] = _text("/etc/resolv.conf")
        texts["hosts"] = f"127.0.0.1 {bundle.HOSTNAME}\n{_text('/etc/hosts') or texts['hosts']}"
    for name, text in texts.items():
        (place / name).write_text(text)
        (place / name).chmod(0o644)
    return tuple(Mount(f"/etc/{name}", place / name, readonly=True) for name in texts)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _with_mount_points(
    layers: tuple[Path, ...],
    union: Union,
    place: Path,
    process: Process,
    mounts: Sequence[Mount],
) -> tuple[Path, ...]:
    points = [scaffold.MountPoint(target, True) for target in ("/proc", "/dev", "/sys")]
    for mount in mounts:
        directory = mount.kind == "tmpfs" or mount.source is None or mount.source.is_dir()
        points.append(scaffold.MountPoint(mount.target, directory))
    points.append(scaffold.MountPoint(process.working_directory, True))
    layer = place / "points"
    layer.mkdir()
    return (*layers, layer) if scaffold.build(union, points, layer) else layers


def _write_configuration(
    place: Path,
    process: Process,
    mounts: Sequence[Mount],
    *,
    merged: Path,
    device_directory: Path,
    network: bool | Network,
) -> None:
    joined = network if isinstance(network, Network) else None
    around = bundle.Surroundings(
        root=merged,
        devices=device_directory,
        network=network is True,
        namespace=None if joined is None else joined.namespace,
        hostname=("" if joined is None else joined.host) or bundle.HOSTNAME,
        terminal_group=None if userns.single_id() else _TERMINAL_GROUP,
        fresh_sysfs=not userns.unprivileged() or network is not True,
        seccomp=True,
    )
    try:
        data = msgspec.json.encode(bundle.configuration(process, mounts, around))
    except UnicodeEncodeError as error:
        raise UsageError(
            f"an argument, a variable or a path is not UTF-8: {error.object!r}",
            hint="rename it: container runtimes take UTF-8 only",
        ) from error
    # The configuration holds the environment, which may hold secrets.
    descriptor = os.open(place / "config.json", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
