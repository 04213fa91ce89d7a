"""A log file of limited size: the current file, and one with what came before."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from danlu.util.files import is_disk_failure


class RotatingLog:
    """Appends raw output to ``path``; ``path`` + ``.1`` has what came before.

    Output is dropped while the disk is full, so that the program that writes it never blocks.
    """

    def __init__(self, path: Path, *, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._file = -1
        self._size = 0

    def write(self, data: bytes) -> None:
        """Append ``data``, rotating first if the file would become larger than the limit."""
        try:
            self._open_file()
            if self._size and self._size + len(data) > self._limit:
                self.close()
                os.replace(self._path, f"{self._path}.1")
                self._open_file()
            while data:
                written = os.write(self._file, data)
                self._size += written
                data = data[written:]
        except OSError as error:
            # A full disk must not end the program whose output this is.
            if not is_disk_failure(error):
                raise

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _open_file(self) -> None:
        if self._file < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
            self._size = os.fstat(self._file).st_size


class LogFollower:
    """Reads a :class:`RotatingLog` while it grows, across rotations."""

    def __init__(self, path: Path, *, tail: int | None = None) -> None:
        self._path = path
        self._file = -1
        self._pending = self._read_existing(tail)

    def read(self) -> bytes:
        """Return what has been written since the last call; empty if nothing."""
        data, self._pending = self._pending, b""
        while self._file >= 0 and (chunk := os.read(self._file, 1 << 20)):
            data += chunk
        # Only now, after everything was read: nothing is appended to a file that was rotated.
        if self._has_new_file():
            self.close()
        if self._file < 0:
            with suppress(FileNotFoundError):
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                data += self.read()
        return data

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _has_new_file(self) -> bool:
        if self._file < 0:
            return False
        try:
            return os.stat(self._path).st_ino != os.fstat(self._file).st_ino
        except FileNotFoundError:
            return False

    def _read_existing(self, tail: int | None) -> bytes:
        """Return the last ``tail`` lines of both files (None: all of them)."""
        data = b""
        with suppress(FileNotFoundError):
            data = Path(f"{self._path}.1").read_bytes()
        with suppress(FileNotFoundError):
            self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            while chunk := os.read(self._file, 1 << 20):
                data += chunk
        return data if tail is None else _last_lines(data, tail)


def _last_lines(data: bytes, count: int) -> bytes:
    return b"".join(data.splitlines(keepends=True)[-count:]) if count else b""
