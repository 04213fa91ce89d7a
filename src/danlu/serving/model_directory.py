"""The files of a model directory, which may come from anywhere."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from danlu.errors import UsageError
from danlu.util.sanitize import escape_unprintable

#: More files than models have; each is looked at by itself.
MAX_FILES = 5000

#: A file of at least this size in bytes is a separate layer.
LARGE_FILE = 1 << 20

#: The number of files that can be separate layers: engines allow 127 layers.
MAX_LARGE_FILES = 32


class ModelFile(msgspec.Struct, frozen=True):
    """A file, by its path relative to the model directory; ``size`` in bytes."""

    path: str
    size: int


class ModelDirectory(msgspec.Struct, frozen=True):
    """A model directory that was checked; ``files`` are sorted by path.

    With ``is_file`` only the one file in ``files`` belongs to the model.
    """

    path: Path
    files: tuple[ModelFile, ...]
    is_file: bool = False

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def large(self) -> tuple[str, ...]:
        """The paths of the files that are separate layers, sorted."""
        by_size = sorted(self.files, key=lambda file: (-file.size, file.path))
        chosen = by_size[:MAX_LARGE_FILES]
        return tuple(sorted(file.path for file in chosen if file.size >= LARGE_FILE))


def read_model_directory(path: Path) -> ModelDirectory:
    """Return the files of a model directory; a file is a directory with only that file.

    Raises :class:`UsageError` if it does not exist, is empty, or has a link that leads out of it,
    a pipe, a socket or a device.
    """
    if path.is_file() and not path.is_symlink():
        file = ModelFile(path.name, path.stat().st_size)
        return ModelDirectory(path.parent.resolve(), (file,), is_file=True)
    if not path.is_dir():
        raise UsageError(f"model directory {path} not found")
    root = os.path.realpath(path)
    files: list[ModelFile] = []
    for directory, names, others in os.walk(root):
        names[:] = [name for name in names if name != ".git"]
        links = [name for name in names if os.path.islink(os.path.join(directory, name))]
        for name in (*others, *links):
            files.append(_check_file(root, os.path.join(directory, name)))
        if len(files) > MAX_FILES:
            raise UsageError(
                f"{path} has more than {MAX_FILES} files", hint="name the directory of the model"
            )
    if not files:
        raise UsageError(
            f"model directory {path} is empty",
            hint="train the model first, or name the directory that has its files",
        )
    return ModelDirectory(Path(root), tuple(sorted(files, key=lambda file: file.path)))


def _check_file(root: str, file: str) -> ModelFile:
    relative = os.path.relpath(file, root)
    name = escape_unprintable(relative)
    try:
        status = os.lstat(file)
        if stat.S_ISLNK(status.st_mode):
            target = os.path.realpath(file, strict=True)
            if not target.startswith(root + os.sep):
                raise UsageError(
                    f"{name} in the model directory is a link to"
                    f" {escape_unprintable(os.readlink(file))}, outside of it",
                    hint="copy the model with its links followed: cp -rL MODEL_DIR COPY",
                )
        elif not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{name} in the model directory is not a file", hint="remove it")
        elif not os.access(file, os.R_OK):
            raise UsageError(f"{name} in the model directory cannot be read")
    except OSError as error:
        raise UsageError(
            f"{name} in the model directory cannot be read: {error.strerror}",
            hint="remove it, or repair the link",
        ) from error
    return ModelFile(relative, 0 if stat.S_ISLNK(status.st_mode) else status.st_size)
