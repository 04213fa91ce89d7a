r"""What replicas print, kept as records of single lines in files that are rotated by size.

A record is ``NUMBER ATTEMPT MICROSECONDS W|P DATA\n``: the line's number over all attempts, the
attempt, when it came (Unix time), whether it is whole or a part, and its bytes as they were. A line
holds no newline, so a record does not either, and the data followed by a newline where it is whole
is the output again, byte for byte. ``NAME.log`` is written to; ``NAME.log.1`` is older, and so on.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from danlu.training.types import ReplicaId

__all__ = ["HEAD", "LONGEST", "LogWriter", "Stream", "log_file", "older"]

LONGEST = 64 << 10
"""The bytes at which a line is cut."""

HEAD = 80
"""What is before the data of a record has fewer bytes."""


def log_file(directory: Path, replica: ReplicaId) -> Path:
    """The file that a replica's output is written to."""
    return directory / f"{replica}.log"


class LogWriter:
    """Writes the log of one replica over all of its attempts."""

    def __init__(self, path: Path, *, limit: int, keep: int) -> None:
        self._path = path
        self._limit = limit
        self._keep = keep
        self._number = 0
        self._size = 0
        self._file = -1

    def write(self, lines: list[bytes], *, attempt: int, whole: bool = True) -> None:
        """Add lines without their newlines, all with this moment's time."""
        tail = b" %d %d %s " % (attempt, time.time_ns() // 1000, b"W" if whole else b"P")
        number = self._number
        records = [
            b"%d%s%s\n" % (index, tail, line) for index, line in enumerate(lines, start=number)
        ]
        self._number += len(lines)
        self._append(b"".join(records))

    def _append(self, data: bytes) -> None:
        if self._size and self._size + len(data) > self._limit:
            self._rotate()
        if self._file < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
        self._size += len(data)
        while data:
            data = data[os.write(self._file, data) :]

    def _rotate(self) -> None:
        self.close()
        for number in range(self._keep, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(older(self._path, number - 1), older(self._path, number))

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._size = -1, 0


class Stream:
    """The output of one container as it comes in pieces, cut into lines for a writer."""

    def __init__(self, writer: LogWriter, attempt: int) -> None:
        self._writer = writer
        self._attempt = attempt
        self._rest = b""

    def feed(self, piece: bytes) -> None:
        """Take further bytes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if any(len(line) > LONGEST for line in lines):
            for line in lines:
                self._write_cut(line)
        elif lines:
            self._writer.write(lines, attempt=self._attempt)
        while len(self._rest) >= LONGEST:
            self._part(self._rest[:LONGEST])
            self._rest = self._rest[LONGEST:]

    def _write_cut(self, line: bytes) -> None:
        while len(line) > LONGEST:
            self._part(line[:LONGEST])
            line = line[LONGEST:]
        self._writer.write([line], attempt=self._attempt)

    def _part(self, data: bytes) -> None:
        self._writer.write([data], attempt=self._attempt, whole=False)

    def end(self) -> None:
        """Take what lacks its newline for a line."""
        if self._rest:
            self._part(self._rest)
        self._rest = b""


def older(path: Path, number: int) -> Path:
    """The file that was rotated ``number`` times; 0 is the one that is written to."""
    return path.with_name(f"{path.name}.{number}") if number else path
