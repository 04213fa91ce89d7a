"""What is at a path of a stack of layers, without mounting it.

The rules are overlayfs's (kernel documentation, filesystems/overlayfs): the topmost entry wins,
directories merge until one is opaque, a deletion hides what lies below. Symbolic links are
followed inside the root, never out of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from danlu.errors import UsageError
from danlu.oci.overlay import is_opaque, is_whiteout

__all__ = ["Union"]

_LINKS = 40
_READ = 1 << 20


class Union:
    """The merged view of ``layers``, lowest first; reads each directory of each layer once."""

    def __init__(self, layers: Sequence[Path]) -> None:
        self._cache: dict[tuple[str, ...], list[str]] = {
            (): [str(layer) for layer in reversed(layers)]
        }

    def directories(self, parts: tuple[str, ...]) -> list[str]:
        """The real directories that make up the directory at ``parts``, topmost first."""
        found = self._cache.get(parts)
        if found is None:
            found = self._cache[parts] = self._find(parts)[1]
        return found

    def entry(self, parts: tuple[str, ...]) -> str | None:
        """The real path of the entry at ``parts``, or None; the last link is not followed."""
        if not parts:
            below = self._cache[()]
            return below[0] if below else None
        return self._find(parts)[0]

    def resolve(self, target: str) -> tuple[str, ...]:
        """The parts of absolute path ``target`` with its links followed inside the root.

        Parts that do not exist are kept as they are. Raises :class:`UsageError` for a loop.
        """
        done: tuple[str, ...] = ()
        waiting = _split(target)
        links = 0
        while waiting:
            name = waiting.pop(0)
            if name == "..":
                done = done[:-1]
                continue
            path = self._find((*done, name))[0]
            if path is None or not os.path.islink(path):
                done = (*done, name)
                continue
            links += 1
            if links > _LINKS:
                raise UsageError(f"the image's symbolic links at {target} lead nowhere")
            link = os.readlink(path)
            done = () if link.startswith("/") else done
            waiting = _split(link) + waiting
        return done

    def add(self, parts: tuple[str, ...], directory: str) -> None:
        """Lay one more real directory over the directory at ``parts``."""
        below = [path for path in self.directories(parts) if path != directory]
        self._cache[parts] = [directory, *below]

    def read(self, target: str) -> bytes | None:
        """The first MiB of the file at ``target``, or None where there is none."""
        path = self.entry(self.resolve(target))
        if path is None or not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            return file.read(_READ)

    def _find(self, parts: tuple[str, ...]) -> tuple[str | None, list[str]]:
        *above, name = parts
        top: str | None = None
        directories: list[str] = []
        for directory in self.directories(tuple(above)):
            path = f"{directory}/{name}"
            try:
                status = os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            if is_whiteout(path, status):
                break
            if not stat.S_ISDIR(status.st_mode):
                top = top or path
                break
            top = top or path
            directories.append(path)
            if is_opaque(path):
                break
        return top, directories


def _split(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
