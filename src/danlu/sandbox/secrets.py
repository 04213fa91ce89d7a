"""Secrets for one run: in memory that is mounted for it, never on a disk or in a layer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from danlu.errors import UsageError
from danlu.sandbox import _linux
from danlu.sandbox.types import Mount

__all__ = ["mounted"]


@contextmanager
def mounted(
    wanted: Sequence[tuple[str, str]],
    values: Mapping[str, Path],
    *,
    work: Path,
    uid: int = 0,
    gid: int = 0,
) -> Iterator[tuple[Mount, ...]]:
    """Give read-only mounts for ``wanted``, pairs of (id, absolute path inside).

    ``values`` are the files that hold them on this machine. Inside, ``uid`` and ``gid`` own them
    and nobody else may read them. Raises :class:`UsageError` for an id that has no value.
    """
    _check(wanted, values)
    if not wanted:
        yield ()
        return
    place = Path(mkdtemp(prefix="secrets.", dir=work))
    flags = _linux.MS_NOSUID | _linux.MS_NODEV
    _linux.mount("tmpfs", str(place), "tmpfs", flags, "mode=700,size=16m")
    try:
        yield tuple(
            Mount(target, _copy(values[name], place / str(number), uid, gid), readonly=True)
            for number, (name, target) in enumerate(wanted)
        )
    finally:
        _linux.umount(str(place), _linux.MNT_DETACH)
        place.rmdir()


def _check(wanted: Sequence[tuple[str, str]], values: Mapping[str, Path]) -> None:
    missing = sorted({name for name, _ in wanted if name not in values})
    if missing:
        raise UsageError(
            f"no value was given for the secret {', '.join(missing)}",
            hint=" ".join(f"--secret id={name},src=FILE" for name in missing),
        )
    for name in sorted({name for name, _ in wanted}):
        if not os.access(values[name], os.R_OK) or not values[name].is_file():
            raise UsageError(f"the file of the secret {name} cannot be read: {values[name]}")


def _copy(source: Path, target: Path, uid: int, gid: int) -> Path:
    data = source.read_bytes()
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.chown(target, uid, gid)
    return target
