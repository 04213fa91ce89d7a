"""The files of a package that is sent with a job, and how large they may be."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from danlu.errors import UsageError
from danlu.util.human import format_size

__all__ = ["Limit", "content", "files_below"]

_SHOWN = 5
_COMPILED = (".pyc", ".pyo")


class Limit(msgspec.Struct, frozen=True):
    """How many bytes and files of local modules are sent with a job at most."""

    size: int = 64 << 20
    count: int = 10_000

    def check(self, files: Mapping[str, Path]) -> None:
        """Raise :class:`UsageError` for too much, naming the largest."""
        sizes = {name: path.stat().st_size for name, path in files.items()}
        total = sum(sizes.values())
        if total <= self.size and len(files) <= self.count:
            return
        largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:_SHOWN]
        whole = sorted({one.partition("/")[0] for one in largest})
        raise UsageError(
            f"the local modules that are imported ({', '.join(whole)}) are too large to send:"
            f" {len(files)} files of {format_size(total)}, where {self.count} files of"
            f" {format_size(self.size)} are allowed",
            details=tuple(f"{name}: {format_size(sizes[name])}" for name in largest),
            hint="keep data outside of packages, where the job reads it by its path or a volume",
        )


def content(path: Path) -> bytes:
    """The bytes of a file that is to be sent; :class:`UsageError` where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be sent with the job: {error.strerror or error}",
            hint="let it be readable, or keep it outside of the packages that are imported",
        ) from error


def files_below(directory: Path, prefix: str, limit: Limit) -> dict[str, Path]:
    """The files of a package by where they are sent, modules and data, links followed.

    What Python compiled, hidden files and virtual environments are left out. Raises
    :class:`UsageError` where there are more than ``limit`` allows.
    """
    found: dict[str, Path] = {}
    for root, names in _walk(directory):
        below = os.path.relpath(root, directory)
        place = prefix if below == "." else f"{prefix}/{below}"
        for name in names:
            found[f"{place}/{name}"] = root / name
        if len(found) > limit.count:
            limit.check(found)
    return found


def _walk(directory: Path) -> Iterator[tuple[Path, list[str]]]:
    seen = set()
    for root, directories, files in os.walk(directory, followlinks=True):
        real = os.path.realpath(root)
        if real in seen or "pyvenv.cfg" in files:
            directories.clear()
            continue
        seen.add(real)
        directories[:] = sorted(one for one in directories if _is_sent(one))
        here = Path(root)
        # Neither a link to nothing nor a socket is a file.
        yield here, sorted(one for one in files if _is_sent(one) and (here / one).is_file())


def _is_sent(name: str) -> bool:
    return not name.startswith(".") and name != "__pycache__" and not name.endswith(_COMPILED)
