r"""What replicas print, kept as records of single lines in files that are rotated by size.

A record is ``NUMBER ATTEMPT MICROSECONDS W|P DATA\n``: the line's number over all attempts, the
attempt, when it came (Unix time), whether it is whole or a part, and its bytes as they were. A line
holds no newline, so a record does not either, and the data followed by a newline where it is whole
is the output again, byte for byte. ``NAME.log`` is written to; ``NAME.log.1`` is older, and so on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from danlu.jobs.types import LogLine
from danlu.training.types import ReplicaId

__all__ = ["LONGEST", "LogReader", "LogWriter", "Stream", "log_file"]

LONGEST = 64 << 10
"""The bytes at which a line is cut."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_READ = 1 << 20
_HEAD = 80


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
                os.replace(_older(self._path, number - 1), _older(self._path, number))

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


class LogReader:
    """Reads the log of one replica on from a line, across rotations, each line once."""

    def __init__(self, directory: Path, replica: ReplicaId, *, tail: int | None = None) -> None:
        self._path = log_file(directory, replica)
        self._replica = replica
        self._file = -1
        self._rest = b""
        self._next = 0 if tail is None else max(0, _count(self._path) - tail)

    def read(self) -> Iterator[LogLine]:
        """All lines there are by now and that were not read before."""
        while True:
            if self._file < 0 and not self._open():
                return
            yield from self._lines()
            if not self._replaced():
                return
            # Nothing is written to a file once another has its name, but there was until then.
            yield from self._lines()
            self.close()

    def _lines(self) -> Iterator[LogLine]:
        while piece := os.read(self._file, _READ):
            *records, self._rest = (self._rest + piece).split(b"\n")
            for record in records:
                line = _parsed(record, self._replica)
                if line.number >= self._next:
                    self._next = line.number + 1
                    yield line

    def _replaced(self) -> bool:
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return False  # another is about to come
        mine = os.fstat(self._file)
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    def _open(self) -> bool:
        """Open the file that holds the next line, else the oldest with later ones."""
        found = _files(self._path)
        if not found:
            return False
        before = [one for one in found if one[0] <= self._next]
        _, self._file = before[-1] if before else found[0]
        for _, descriptor in found:
            if descriptor != self._file:
                os.close(descriptor)
        return True

    def close(self) -> None:
        """Close what is open."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._rest = -1, b""


def _older(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}") if number else path


def _files(path: Path) -> list[tuple[int, int]]:
    """The first number in, and a descriptor of, each file of a log that has any, the oldest first.

    Files move up while this looks, so it looks upwards: then it may see one twice, and misses none.
    """
    found: dict[int, tuple[int, int]] = {}
    number, absent = 0, 0
    while absent < 3:
        try:
            descriptor = os.open(_older(path, number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            absent += 1
        else:
            first = os.pread(descriptor, _HEAD, 0).split(b" ", 1)
            inode = os.fstat(descriptor).st_ino
            if inode in found or len(first) < 2:
                os.close(descriptor)
            else:
                found[inode] = (int(first[0]), descriptor)
        number += 1
    return sorted(found.values())


def _count(path: Path) -> int:
    """How many lines there were so far."""
    found = _files(path)
    for _, descriptor in found[:-1]:
        os.close(descriptor)
    if not found:
        return 0
    _, descriptor = found[-1]
    try:
        size = os.fstat(descriptor).st_size
        # The last whole record lies in here: it is a little longer than the longest line.
        end = os.pread(descriptor, 2 * (LONGEST + _HEAD), max(0, size - 2 * (LONGEST + _HEAD)))
    finally:
        os.close(descriptor)
    last = end[: end.rfind(b"\n")].rpartition(b"\n")[2]
    return int(last.split(b" ", 1)[0]) + 1


def _parsed(record: bytes, replica: ReplicaId) -> LogLine:
    number, attempt, micros, whole, data = record.split(b" ", 4)
    return LogLine(
        replica,
        int(attempt),
        int(number),
        _EPOCH + timedelta(microseconds=int(micros)),
        data,
        whole == b"W",
    )
