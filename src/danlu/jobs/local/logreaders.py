"""Reads the logs of replicas (:mod:`danlu.jobs.local.logs`) while they are written and rotated.

In turns of a bounded size: whoever follows a job that writes faster than it can be read has its own
turn in between, and holds no more than that in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path

from danlu.jobs.local.logs import HEAD, LONGEST, log_file, older
from danlu.jobs.types import LogLine
from danlu.training.types import ReplicaId

__all__ = ["LogReader", "LogReaders"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Bytes of one turn over all replicas, and the fewest of one replica.
_TURN, _LEAST = 1 << 20, 16 << 10
#: Who keeps up only with the newest lines is never further behind than that, in bytes of a replica,
#: and then goes on so far from the end.
_FAR, _NEAR = 1 << 20, 128 << 10
#: The longest record, and some.
_RECORD = LONGEST + HEAD + 1


class LogReaders:
    """Reads the logs of several replicas as one, its lines in the order in which they came.

    ``newest`` passes over lines where it cannot keep up.
    """

    def __init__(self, directory: Path, *, tail: int | None = None, newest: bool = False) -> None:
        self._directory = directory
        self._tail = tail
        self._newest = newest
        self._readers: dict[ReplicaId, LogReader] = {}
        self._held: list[LogLine] = []

    @property
    def more(self) -> bool:
        """Whether there was more than one turn's."""
        return any(one.more for one in self._readers.values())

    def read(self, replicas: Iterable[ReplicaId]) -> list[LogLine]:
        """One turn: lines of these replicas and of those before, as they came over all of them."""
        for one in replicas:
            if one not in self._readers:
                self._readers[one] = LogReader(self._directory, one, tail=self._tail)
        most = max(_LEAST, _TURN // max(1, len(self._readers)))
        lines, self._held = self._held, []
        until: datetime | None = None
        for reader in self._readers.values():
            if self._newest:
                reader.catch_up()
            found = reader.read(most)
            lines += found
            if reader.more and found:
                until = min(until or found[-1].time, found[-1].time)
        lines.sort(key=attrgetter("time"))
        if until is not None:
            # What comes after may have to be after lines that were not read yet.
            self._held = [one for one in lines if one.time > until]
            lines = lines[: len(lines) - len(self._held)]
        return lines

    def close(self) -> None:
        """Close what is open."""
        for reader in self._readers.values():
            reader.close()


class LogReader:
    """Reads the log of one replica on from a line, across rotations, each line once."""

    def __init__(self, directory: Path, replica: ReplicaId, *, tail: int | None = None) -> None:
        self._path = log_file(directory, replica)
        self._replica = replica
        self._file = -1
        self._rest = b""
        self._room = 0
        self._next = 0 if tail is None else max(0, _count(self._path) - tail)

    @property
    def more(self) -> bool:
        """Whether there was more than the last :meth:`read` was to give."""
        return self._room < 0

    def read(self, most: int) -> list[LogLine]:
        """Lines there are by now and that were not read before, of about ``most`` bytes."""
        self._room = most
        lines: list[LogLine] = []
        while self._file >= 0 or self._open():
            lines += self._lines()
            if self.more or not self._replaced():
                break
            # Nothing is written to a file once another has its name, but there was until then.
            lines += self._lines()
            if self.more:
                break
            self.close()
        return lines

    def _lines(self) -> list[LogLine]:
        lines: list[LogLine] = []
        while self._room >= 0 and (piece := os.read(self._file, self._room + 1)):
            self._room -= len(piece)
            *records, self._rest = (self._rest + piece).split(b"\n")
            for record in records:
                line = _parsed(record, self._replica)
                if line.number >= self._next:
                    self._next = line.number + 1
                    lines.append(line)
        return lines

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
        self._take(before[-1] if before else found[0], found)
        return True

    def _take(self, chosen: tuple[int, int], found: list[tuple[int, int]]) -> None:
        for _, descriptor in found:
            if descriptor != chosen[1]:
                os.close(descriptor)
        self.close()
        self._file = chosen[1]

    def catch_up(self) -> None:
        """Go on near the end where that is far away; the lines between are not read."""
        if self._file < 0 or self._left() <= _FAR:
            return
        found = _files(self._path)
        if not found:
            return  # removed meanwhile
        *_, last = [one for one in found if os.fstat(one[1]).st_size > _NEAR] or found
        self._take(last, found)
        size = os.fstat(self._file).st_size
        if size > _NEAR:
            start = size - _NEAR
            within = os.pread(self._file, _RECORD, start).find(b"\n")
            os.lseek(self._file, start + within + 1, os.SEEK_SET)

    def _left(self) -> int:
        """Bytes of what has not been read, or more where the file is replaced."""
        left = os.fstat(self._file).st_size - os.lseek(self._file, 0, os.SEEK_CUR)
        with suppress(FileNotFoundError):
            if self._replaced():
                left += self._path.stat().st_size
        return left

    def close(self) -> None:
        """Close what is open."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._rest = -1, b""


def _files(path: Path) -> list[tuple[int, int]]:
    """The first number in, and a descriptor of, each file of a log that has any, the oldest first.

    Files move up while this looks, so it looks upwards: then it may see one twice, and misses none.
    """
    found: dict[int, tuple[int, int]] = {}
    number, absent = 0, 0
    while absent < 3:
        try:
            descriptor = os.open(older(path, number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            absent += 1
        else:
            first = os.pread(descriptor, HEAD, 0).split(b" ", 1)
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
        end = os.pread(descriptor, 2 * (LONGEST + HEAD), max(0, size - 2 * (LONGEST + HEAD)))
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
