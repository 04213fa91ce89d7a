"""Look up paths in a stack of layers without mounting it.

The rules are overlayfs's (kernel documentation, filesystems/overlayfs): the topmost entry wins,
directories merge until one is opaque, a whiteout hides what lies below. Symbolic links are resolved
inside the root and never lead out of it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from danlu.errors import UsageError
from danlu.oci.overlay import is_opaque, is_whiteout

# The kernel's own limit (path_resolution(7)).
_MAX_LINKS = 40
_MAX_READ = 1 << 20


class LayerView:
    """The merged view of ``layers``, lowest first. Each directory of each layer is read once."""

    def __init__(self, layers: Sequence[Path]) -> None:
        self._cache: dict[tuple[str, ...], list[str]] = {
            (): [str(layer) for layer in reversed(layers)]
        }

    def directories(self, parts: tuple[str, ...]) -> list[str]:
        """Return the real directories that make up the directory at ``parts``, topmost first."""
        cached = self._cache.get(parts)
        if cached is None:
            cached = self._cache[parts] = self._find_entry(parts)[1]
        return cached

    def entry(self, parts: tuple[str, ...]) -> str | None:
        """Return the real path of the entry at ``parts``, or None; a link is not followed."""
        if not parts:
            below = self._cache[()]
            return below[0] if below else None
        return self._find_entry(parts)[0]

    def names(self, parts: tuple[str, ...]) -> set[str]:
        """Return the names in the directory at ``parts``."""
        found = {name for directory in self.directories(parts) for name in os.listdir(directory)}
        return {name for name in found if self.entry((*parts, name)) is not None}

    def resolve(self, target: str) -> tuple[str, ...]:
        """Return the components of the absolute path ``target``, with links resolved.

        Components that do not exist are kept. Raises :class:`UsageError` for a loop.
        """
        done: tuple[str, ...] = ()
        waiting = _split_path(target)
        links = 0
        while waiting:
            name = waiting.pop(0)
            if name == "..":
                # Above the root is the root (path_resolution(7)): no link of an image leads out of
                # it.
                done = done[:-1]
                continue
            path = self._find_entry((*done, name))[0]
            if path is None or not os.path.islink(path):
                done = (*done, name)
                continue
            links += 1
            if links > _MAX_LINKS:
                raise UsageError(f"the image's symbolic links at {target} form a loop")
            link = os.readlink(path)
            done = () if link.startswith("/") else done
            waiting = _split_path(link) + waiting
        return done

    def add_directory(self, parts: tuple[str, ...], directory: str) -> None:
        """Add a real directory on top of the directory at ``parts``."""
        below = [path for path in self.directories(parts) if path != directory]
        self._cache[parts] = [directory, *below]

    def read(self, target: str) -> bytes | None:
        """Return the first MiB of the file at ``target``, or None if it does not exist."""
        path = self.entry(self.resolve(target))
        # Not a pipe or a device, at which a read could wait for ever.
        if path is None or not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            # The image is untrusted: its files may be larger than memory.
            return file.read(_MAX_READ)

    def blocks_reading(self, target: str) -> bool:
        """Return whether ``target`` may be something else than a file, such as a pipe.

        A program that opens a pipe waits for a writer. A link to what no layer has counts: it may
        lead to a mount.
        """
        parts = self.resolve(target)
        path = self.entry(parts)
        return not os.path.isfile(path) if path else parts != tuple(_split_path(target))

    def _find_entry(self, parts: tuple[str, ...]) -> tuple[str | None, list[str]]:
        *above, name = parts
        top: str | None = None
        directories: list[str] = []
        for directory in self.directories(tuple(above)):
            path = f"{directory}/{name}"
            try:
                status = os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            # A whiteout hides everything below it, in all lower layers.
            if is_whiteout(path, status):
                break
            # A file hides what is below, and is itself hidden by a directory above.
            if not stat.S_ISDIR(status.st_mode):
                top = top or path
                break
            top = top or path
            directories.append(path)
            if is_opaque(path):
                break
        return top, directories


def _split_path(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
