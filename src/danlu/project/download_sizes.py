"""What a build must download, by size: for `plan`, `lock` and `add`, and before a build starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu.graph.ops import AptInstall, Bootstrap, CondaPackage, Op, UnpackArchive, Wheel
from danlu.sandbox.nvidia_driver import find_proc_root, read_driver
from danlu.sources.http import is_fetched
from danlu.util.human import format_size
from danlu.util.paths import Paths

if TYPE_CHECKING:
    from danlu.environment.lock import FunctionLock
    from danlu.util.config import Configuration

#: Less is downloaded before anybody has read about it.
MIN_REPORTED_BYTES = 20_000_000

_MAX_NAMED = 5

#: How to ask for a package without NVIDIA's libraries.
_CPU_REQUIREMENTS = {
    "torch": 'torch_backend="cpu"',
    "xgboost": '"xgboost-cpu"',
}


class PendingDownload(msgspec.Struct, frozen=True):
    """A file, or the packages of one apt step, that this machine lacks; ``size`` in bytes."""

    name: str
    size: int


def lock_sizes(lock: FunctionLock | None) -> dict[str, int]:
    """Return the sizes of locked packages by SHA-256: an op does not have them."""
    if lock is None:
        return {}
    sizes = {package.sha256: package.size for package in lock.packages}
    conda = lock.conda.packages if lock.conda else ()
    return sizes | {package.sha256: package.size for package in conda}


def find_download(op: Op, sizes: Mapping[str, int], paths: Paths) -> PendingDownload | None:
    """Return what executing ``op`` downloads; None for nothing, or if the size is unknown."""
    match op:
        case AptInstall() | Bootstrap():
            from danlu.sources.apt import user_deb_cache  # with all of apt, which few builds need

            cache = user_deb_cache(paths)
            missing = [deb for deb in op.packages if not cache.path(deb).exists()]
            names = missing[0].name if len(missing) == 1 else f"{len(missing)} system packages"
            found = PendingDownload(names, sum(deb.size for deb in missing))
        case Wheel() if op.source.kind in ("index", "url"):
            digest = op.sha256.removeprefix("sha256:")
            fetched = (paths.cache / "uv" / "fetched" / digest).exists()
            found = PendingDownload(op.name, 0 if fetched else sizes.get(op.sha256, 0))
        case CondaPackage() | UnpackArchive():
            size = op.size if isinstance(op, UnpackArchive) else sizes.get(op.sha256, 0)
            name = op.name if isinstance(op, CondaPackage) else op.path.rpartition("/")[2]
            found = PendingDownload(
                name, 0 if is_fetched(op.sha256, paths.cache / "http") else size
            )
        case _:
            return None
    return found if found.size else None


def find_downloads(
    ops: Iterable[Op], lock: FunctionLock | None, paths: Paths
) -> tuple[PendingDownload, ...]:
    """Return what executing ``ops`` downloads, the largest first."""
    sizes = lock_sizes(lock)
    found = [download for op in ops if (download := find_download(op, sizes, paths)) is not None]
    return tuple(sorted(found, key=lambda download: (-download.size, download.name)))


def describe_downloads(
    downloads: Sequence[PendingDownload], lock: FunctionLock | None, config: Configuration
) -> Iterator[str]:
    """Say how much will be downloaded, what of it is largest, and whether it is CUDA for nobody."""
    total = sum(download.size for download in downloads)
    if total < MIN_REPORTED_BYTES:
        return
    named = [f"{download.name} {format_size(download.size)}" for download in downloads]
    more = f", and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
    yield f"to download: {format_size(total)} ({', '.join(named[:_MAX_NAMED])}{more})"
    cuda = sum(item.size for item in downloads if item.name.startswith(("nvidia-", "cuda-")))
    has_driver = read_driver(find_proc_root(Path(config.gpu_driver_root))) is not None
    if cuda < MIN_REPORTED_BYTES or has_driver:
        return
    packages = lock.packages if lock else ()
    locked = {package.name for package in packages if not package.version.endswith("+cpu")}
    instead = [text for name, text in _CPU_REQUIREMENTS.items() if name in locked]
    hint = f"; without them: {' and '.join(instead)}" if instead else ""
    yield (
        f"hint: {format_size(cuda)} of this are CUDA libraries, and this machine has no NVIDIA"
        f" GPU{hint}"
    )
