r"""The logs of replicas: their output, as one record per line, in files rotated by size.

A record is ``NUMBER ATTEMPT MICROSECONDS W|P DATA\n``: the line's number across all attempts, the
attempt, the time it arrived (Unix time), whether it is a whole line or a part of one (of a long
line, or a state of a progress bar), and its raw bytes. DATA never contains a newline; writing it
followed by a newline for each ``W`` reproduces the output byte for byte. ``NAME.log`` is the
current file, ``NAME.log.1`` the one before, and so on.

Reading is done in batches of limited size. A client that follows a job which writes faster than it
can read stays responsive, and holds no more than one batch in memory.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path

from danlu.jobs.types import MAX_LINE_BYTES, LogLine
from danlu.training.types import ReplicaId
from danlu.util.files import is_disk_failure

RETRY_SECONDS = 1.0

MAX_WAITING = 1 << 20
"""Bytes of a replica's lines kept in memory while they cannot be written."""

MAX_HEAD_BYTES = 80
"""Upper limit of the bytes before a record's data."""


def log_file(directory: Path, replica: ReplicaId) -> Path:
    """Return the current log file of a replica."""
    return directory / f"{replica}.log"


def rotated_file(path: Path, number: int) -> Path:
    """Return the file that was rotated ``number`` times; 0 is the current one."""
    return path.with_name(f"{path.name}.{number}") if number else path


def _monotonic_time() -> float:
    return time.monotonic()


class LogWriter:
    """Writes the log of one replica across all its attempts; a full disk never blocks it.

    Lines that cannot be written are kept in memory; if there are too many, the oldest are dropped.
    When there is space again, they are written after a line that says how many were lost.
    ``lost`` counts lost lines; ``failure`` is why the last write failed, or empty.
    """

    def __init__(self, path: Path, *, limit: int, keep: int) -> None:
        self.lost = 0
        self.failure = ""
        self._path = path
        self._limit = limit
        self._keep = keep
        self._number = 0
        self._attempt = 0
        self._size = 0
        self._file = -1
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        self._retry_at = 0.0

    def write(self, lines: list[bytes], *, attempt: int, whole: bool = True) -> None:
        """Append lines (without newlines), all with the current time."""
        tail = b" %d %d %s " % (attempt, time.time_ns() // 1000, b"W" if whole else b"P")
        records = [
            b"%d%s%s\n" % (index, tail, line) for index, line in enumerate(lines, self._number)
        ]
        self._number += len(lines)
        self._attempt = attempt
        self._waiting.extend(records)
        self._waiting_bytes += sum(map(len, records))
        if not self.failure or _monotonic_time() >= self._retry_at:
            self.flush()
        else:
            self._drop_oldest()

    def flush(self) -> None:
        """Try to write the waiting lines."""
        if not self._waiting:
            return
        data = b"".join((self._lost_record(), *self._waiting))
        try:
            self.append_records(data)
        except OSError as error:
            if not is_disk_failure(error):
                raise
            self.failure = error.strerror or str(error)
            self._retry_at = _monotonic_time() + RETRY_SECONDS
            self._drop_oldest()
            return
        self.failure = ""
        self._waiting.clear()
        self._waiting_bytes = self._dropped = 0

    def _lost_record(self) -> bytes:
        """Return a record that replaces the first lost line; empty if no line was lost.

        It has that line's number, because readers rely on each file starting with the number after
        the last one of the file before.
        """
        if not self._dropped:
            return b""
        number, _, micros, _ = self._waiting[0].split(b" ", 3)
        text = f"… {self._dropped:,} lines lost: disk full ({self.failure})".encode()
        first = int(number) - self._dropped
        return b"%d %d %d W %s\n" % (first, self._attempt, int(micros), text)

    def _drop_oldest(self, max_bytes: int = MAX_WAITING) -> None:
        while self._waiting_bytes > max_bytes and len(self._waiting) > 1:
            self._waiting_bytes -= len(self._waiting.popleft())
            self._dropped += 1
            self.lost += 1

    def append_records(self, data: bytes) -> None:
        """Append whole records; raises :class:`OSError` if they cannot be written."""
        if self._size and self._size + len(data) > self._limit:
            self._rotate_files()
        try:
            self._write_data(data)
        except OSError as error:
            # On a full disk the newest lines are worth more than the oldest.
            if not is_disk_failure(error) or not self._remove_oldest():
                raise
            self._write_data(data)

    def _write_data(self, data: bytes) -> None:
        if self._file < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._path, flags, 0o600)
        rest = data
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            # Never leave half a record behind.
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def _remove_oldest(self) -> bool:
        """Make space for new lines by removing the oldest rotated file."""
        for number in range(self._keep, 0, -1):
            with suppress(FileNotFoundError):
                os.unlink(rotated_file(self._path, number))
                return True
        return False

    def _rotate_files(self) -> None:
        self._close_file()
        for number in range(self._keep, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(rotated_file(self._path, number - 1), rotated_file(self._path, number))

    def close(self, *, last_bytes: int = MAX_WAITING) -> None:
        """Write the waiting lines and close the file.

        If the disk is full, only the last lines (``last_bytes``) are tried; the others are lost.
        """
        self.flush()
        if self._waiting:
            self._drop_oldest(last_bytes)
            self.flush()
        self.lost += len(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        self.failure = ""
        self._close_file()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._size = -1, 0


#: Before the carriage returns that begin a state of a progress bar; not before ``\\r\\n``.
_STATE_BEGINS = re.compile(rb"(?<=[^\r])(?=\r+[^\r])")


class LineSplitter:
    """Splits the output of one container into lines for a writer."""

    def __init__(self, writer: LogWriter, attempt: int) -> None:
        self._writer = writer
        self._attempt = attempt
        self._partial_line = b""

    def feed(self, data: bytes) -> None:
        """Process the next bytes of output."""
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        if b"\r" in data or self._partial_line.startswith(b"\r"):
            self._feed_states(lines)
            lines = []
        if any(len(line) > MAX_LINE_BYTES for line in lines):
            for line in lines:
                self._write_cut(line)
        elif lines:
            self._writer.write(lines, attempt=self._attempt)
        while len(self._partial_line) >= MAX_LINE_BYTES:
            self._write_part(self._partial_line[:MAX_LINE_BYTES])
            self._partial_line = self._partial_line[MAX_LINE_BYTES:]

    def _feed_states(self, lines: list[bytes]) -> None:
        """Write lines with carriage returns: each state of a progress bar is a part.

        The last state is written at once: it may stay on the screen for long, and what follows
        without a carriage return is another line.
        """
        for line in lines:
            *states, end = _STATE_BEGINS.split(line)
            self._write_states(states)
            self._write_cut(end)
        *states, last = _STATE_BEGINS.split(self._partial_line)
        shown = last.rstrip(b"\r")  # a newline may follow these
        if shown.startswith(b"\r"):
            states, last = [*states, shown], last[len(shown) :]
        self._write_states(states)
        self._partial_line = last

    def _write_states(self, states: list[bytes]) -> None:
        for state in states:
            self._write_part(state)

    def _write_cut(self, line: bytes) -> None:
        while len(line) > MAX_LINE_BYTES:
            self._write_part(line[:MAX_LINE_BYTES])
            line = line[MAX_LINE_BYTES:]
        self._writer.write([line], attempt=self._attempt)

    def _write_part(self, data: bytes) -> None:
        self._writer.write([data], attempt=self._attempt, whole=False)

    def close(self) -> None:
        """Write the rest of the output, which has no newline, as a partial line."""
        if self._partial_line:
            self._write_part(self._partial_line)
        self._partial_line = b""


# -- reading ---------------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Bytes of a batch over all replicas, and the minimum per replica.
_BATCH_BYTES, _MIN_REPLICA_BYTES = 1 << 20, 16 << 10
#: A reader of only the newest lines that is further behind than the first number of bytes skips to
#: the second number of bytes before the end.
_MAX_LAG_BYTES, _CATCH_UP_BYTES = 1 << 20, 128 << 10
MAX_RECORD_BYTES = MAX_LINE_BYTES + MAX_HEAD_BYTES + 1

OpenFile = tuple[int, int]
"""The number of the first line in a log file, and an open descriptor."""


class MergedLogReader:
    """Reads the logs of several replicas as one, with lines in order of arrival.

    With ``newest`` it skips lines when it cannot keep up.
    """

    def __init__(self, directory: Path, *, tail: int | None = None, newest: bool = False) -> None:
        self._directory = directory
        self._tail = tail
        self._newest = newest
        self._readers: dict[ReplicaId, LogReader] = {}
        self._pending: list[LogLine] = []

    @property
    def has_more(self) -> bool:
        """Whether the last batch did not contain everything."""
        return any(reader.has_more for reader in self._readers.values())

    def read(self, replicas: Iterable[ReplicaId]) -> list[LogLine]:
        """Read one batch from the logs of these replicas and those of earlier calls."""
        for replica in replicas:
            if replica not in self._readers:
                self._readers[replica] = LogReader(self._directory, replica, tail=self._tail)
        max_bytes = max(_MIN_REPLICA_BYTES, _BATCH_BYTES // max(1, len(self._readers)))
        lines, self._pending = self._pending, []
        until: datetime | None = None
        for reader in self._readers.values():
            if self._newest:
                reader.catch_up()
            batch = reader.read(max_bytes)
            lines += batch
            if reader.has_more and batch:
                until = min(until or batch[-1].time, batch[-1].time)
        lines.sort(key=attrgetter("time"))
        if until is not None:
            # Later lines may belong after lines of the reader that has more; keep them back.
            self._pending = [line for line in lines if line.time > until]
            lines = lines[: len(lines) - len(self._pending)]
        return lines

    def close(self) -> None:
        """Close all open files."""
        for reader in self._readers.values():
            reader.close()


class LogReader:
    """Reads the log of one replica across rotations, returning each line once."""

    def __init__(self, directory: Path, replica: ReplicaId, *, tail: int | None = None) -> None:
        self._path = log_file(directory, replica)
        self._replica = replica
        self._file = -1
        self._partial_record = b""
        self._budget = 0
        self._next_number = 0 if tail is None else max(0, _count_lines(self._path) - tail)

    @property
    def has_more(self) -> bool:
        """Whether the last :meth:`read` stopped at its limit."""
        return self._budget < 0

    def read(self, max_bytes: int) -> list[LogLine]:
        """Return new lines, of about ``max_bytes`` at most."""
        self._budget = max_bytes
        lines: list[LogLine] = []
        while self._file >= 0 or self._open_next():
            lines += self._read_lines()
            if self.has_more or not self._has_new_file():
                break
            # The file was rotated: lines may have been added between our last read and that.
            lines += self._read_lines()
            if self.has_more:
                break
            self.close()
        return lines

    def _read_lines(self) -> list[LogLine]:
        lines: list[LogLine] = []
        while self._budget >= 0 and (data := os.read(self._file, self._budget + 1)):
            self._budget -= len(data)
            *records, self._partial_record = (self._partial_record + data).split(b"\n")
            for record in records:
                line = parse_record(record, self._replica)
                if line.number >= self._next_number:
                    self._next_number = line.number + 1
                    lines.append(line)
        return lines

    def _has_new_file(self) -> bool:
        try:
            current = os.stat(self._path)
        except FileNotFoundError:
            return False  # rotated just now; the new file is created with the next line
        opened = os.fstat(self._file)
        return (current.st_dev, current.st_ino) != (opened.st_dev, opened.st_ino)

    def _open_next(self) -> bool:
        """Open the file that contains the next line, or else the oldest with later lines."""
        files = open_log_files(self._path)
        if not files:
            return False
        candidates = [file for file in files if file[0] <= self._next_number]
        self._switch_file(candidates[-1] if candidates else files[0], files)
        return True

    def _switch_file(self, chosen: OpenFile, files: list[OpenFile]) -> None:
        for _, descriptor in files:
            if descriptor != chosen[1]:
                os.close(descriptor)
        self.close()
        self._file = chosen[1]

    def catch_up(self) -> None:
        """Skip to shortly before the end of the log if the reader is too far behind."""
        if self._file < 0 or self._remaining_bytes() <= _MAX_LAG_BYTES:
            return
        files = open_log_files(self._path)
        if not files:
            return  # removed meanwhile
        *_, last = [file for file in files if os.fstat(file[1]).st_size > _CATCH_UP_BYTES] or files
        self._switch_file(last, files)
        size = os.fstat(self._file).st_size
        if size > _CATCH_UP_BYTES:
            start = size - _CATCH_UP_BYTES
            newline = os.pread(self._file, MAX_RECORD_BYTES, start).find(b"\n")
            os.lseek(self._file, start + newline + 1, os.SEEK_SET)

    def _remaining_bytes(self) -> int:
        """Return the number of unread bytes in this file and, if it was rotated, the current."""
        remaining = os.fstat(self._file).st_size - os.lseek(self._file, 0, os.SEEK_CUR)
        with suppress(FileNotFoundError):
            if self._has_new_file():
                remaining += self._path.stat().st_size
        return remaining

    def close(self) -> None:
        """Close the open file."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._partial_record = -1, b""


def open_log_files(path: Path) -> list[OpenFile]:
    """Open all non-empty files of a log, oldest first.

    Rotation renames files to higher numbers. Going from low to high numbers, a file may be seen
    twice, but none is missed.
    """
    files: dict[int, OpenFile] = {}
    number, absent = 0, 0
    # Not at the first gap: a rotation that is under way leaves a number free for a moment.
    while absent < 3:
        try:
            descriptor = os.open(rotated_file(path, number), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            absent += 1
        else:
            head = os.pread(descriptor, MAX_HEAD_BYTES, 0).split(b" ", 1)
            inode = os.fstat(descriptor).st_ino
            if inode in files or len(head) < 2:
                os.close(descriptor)
            else:
                files[inode] = (int(head[0]), descriptor)
        number += 1
    return sorted(files.values())


def _count_lines(path: Path) -> int:
    """Return how many lines were written so far, including those in deleted files."""
    files = open_log_files(path)
    for _, descriptor in files[:-1]:
        os.close(descriptor)
    if not files:
        return 0
    _, descriptor = files[-1]
    try:
        size = os.fstat(descriptor).st_size
        # Long enough to contain the last complete record.
        length = 2 * (MAX_LINE_BYTES + MAX_HEAD_BYTES)
        end = os.pread(descriptor, length, max(0, size - length))
    finally:
        os.close(descriptor)
    last = end[: end.rfind(b"\n")].rpartition(b"\n")[2]
    return int(last.split(b" ", 1)[0]) + 1


def format_record(line: LogLine, micros: int) -> bytes:
    """Return the record of a line that arrived at ``micros``, with its newline."""
    whole = b"W" if line.whole else b"P"
    return b"%d %d %d %s %s\n" % (line.number, line.attempt, micros, whole, line.data)


def parse_record(record: bytes, replica: ReplicaId) -> LogLine:
    """Return the line of a record, which has no newline."""
    number, attempt, micros, whole, data = record.split(b" ", 4)
    return LogLine(
        replica,
        int(attempt),
        int(number),
        _EPOCH + timedelta(microseconds=int(micros)),
        data,
        whole == b"W",
    )
