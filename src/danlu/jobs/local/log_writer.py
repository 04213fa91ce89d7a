r"""Write the output of replicas, as one record per line, to files rotated by size.

A record is ``NUMBER ATTEMPT MICROSECONDS W|P DATA\n``: the line's number across all attempts, the
attempt, the time it arrived (Unix time), whether it is a whole line or a part of one, and its raw
bytes. DATA never contains a newline; writing it followed by a newline for each ``W`` reproduces the
output byte for byte. ``NAME.log`` is the current file, ``NAME.log.1`` the one before, and so on.
"""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from danlu.jobs.types import MAX_LINE_BYTES
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
            self._append_data(data)
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

    def _append_data(self, data: bytes) -> None:
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


class LineSplitter:
    """Splits the output of one container into lines for a writer."""

    def __init__(self, writer: LogWriter, attempt: int) -> None:
        self._writer = writer
        self._attempt = attempt
        self._partial_line = b""

    def feed(self, data: bytes) -> None:
        """Process the next bytes of output."""
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        if any(len(line) > MAX_LINE_BYTES for line in lines):
            for line in lines:
                self._write_cut(line)
        elif lines:
            self._writer.write(lines, attempt=self._attempt)
        while len(self._partial_line) >= MAX_LINE_BYTES:
            self._write_part(self._partial_line[:MAX_LINE_BYTES])
            self._partial_line = self._partial_line[MAX_LINE_BYTES:]

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
