"""Random access to the logs of replicas: lines by number, time or text, without reading all.

Numbers and times of the records in a log only grow, so any line is found by bisecting the bytes of
its files. The lines of several replicas have one order, by time, and each has an index in it: the
number of lines before it, including those whose files were deleted.
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import TracebackType

import msgspec

from danlu.jobs.local.log_files import (
    MAX_RECORD_BYTES,
    log_file,
    open_log_files,
    parse_record,
)
from danlu.jobs.types import LogLine
from danlu.training.types import ReplicaId

Cursor = Mapping[str, int]
"""The number of the next line by replica (``worker-0``); 0 for those that are not in it."""

#: The fields by which records are found: all of them only grow.
_NUMBER, _TIME, _ATTEMPT = range(3)
_PROBE_BYTES = 256
#: Below this distance records are read one after the other instead of bisecting further.
_SCAN_BYTES = 16 << 10
_CHUNK_BYTES = 1 << 20


class AttemptSpan(msgspec.Struct, frozen=True):
    """When an attempt at a replica printed its first and its last line."""

    attempt: int
    begin: datetime
    end: datetime


class ReplicaLogIndex:
    """The log of one replica at the moment when this is created.

    ``begin`` is the number of the first line that is still there, ``end`` that after the last one.
    """

    def __init__(self, directory: Path, replica: ReplicaId) -> None:
        self.replica = replica
        self.name = str(replica)
        self._files = [descriptor for _, descriptor in open_log_files(log_file(directory, replica))]
        self._sizes = [_whole_size(descriptor) for descriptor in self._files]
        heads = [self._parse_head(index, 0) for index in range(len(self._files))]
        kept = [index for index, head in enumerate(heads) if head is not None]
        self._begins = [head for head in heads if head is not None]
        for index in set(range(len(self._files))) - set(kept):
            os.close(self._files[index])
        self._files = [self._files[index] for index in kept]
        self._sizes = [self._sizes[index] for index in kept]
        self.begin = self._begins[0][0] if self._begins else 0
        self.end = self._find_record(_TIME, 1 << 62)[2] if self._begins else 0

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._files:
            os.close(descriptor)
        self._files = []

    def count_before(self, micros: int) -> int:
        """Return the number of the first line that was written at ``micros`` or later."""
        return self._find_record(_TIME, micros)[2] if self._begins else 0

    @property
    def times(self) -> tuple[int, int]:
        """The times of the first line and, about, of the last one; 0 if there are none."""
        if not self._begins:
            return 0, 0
        last = self.read(self.end - 1, 1)
        return self._begins[0][1], _micros_of(last[0]) if last else self._begins[-1][1]

    def read(self, number: int, count: int) -> list[LogLine]:
        """Return up to ``count`` lines from ``number`` on."""
        lines: list[LogLine] = []
        for record in self._iterate_records(number):
            if len(lines) == count:
                break
            lines.append(parse_record(record, self.replica))
        return lines

    def find_text(self, text: bytes, number: int) -> LogLine | None:
        """Return the first line from ``number`` on that contains ``text`` in any case (ASCII)."""
        wanted = text.lower()
        for chunk in self._iterate_chunks(number):
            lowered = chunk.lower()
            position = lowered.find(wanted)
            while position >= 0:
                start = chunk.rfind(b"\n", 0, position) + 1
                end = chunk.find(b"\n", position)
                line = parse_record(chunk[start:end], self.replica)
                if line.number >= number and wanted in line.data.lower():
                    return line
                position = lowered.find(wanted, end)
        return None

    def list_attempts(self) -> list[AttemptSpan]:
        """Return the attempts that have printed something, in order."""
        spans: list[AttemptSpan] = []
        number = self.begin
        while number < self.end:
            (first,) = self.read(number, 1)
            number = self._find_record(_ATTEMPT, first.attempt + 1)[2]
            (last,) = self.read(number - 1, 1)
            spans.append(AttemptSpan(first.attempt, first.time, last.time))
        return spans

    # -- files --------------------------------------------------------------------------------

    def _iterate_records(self, number: int) -> Iterable[bytes]:
        for chunk in self._iterate_chunks(number):
            for record in chunk.split(b"\n")[:-1]:
                if int(record.split(b" ", 1)[0]) >= number:
                    yield record

    def _iterate_chunks(self, number: int) -> Iterable[bytes]:
        """Yield parts of the files, each of whole records, from the line ``number`` on."""
        if not self._begins:
            return
        first, offset, _ = self._find_record(_NUMBER, number)
        size = 4 * _SCAN_BYTES
        for index in range(first, len(self._files)):
            while offset < self._sizes[index]:
                data = os.pread(self._files[index], size, offset)
                data = data[: min(len(data), self._sizes[index] - offset)]
                whole = data.rfind(b"\n") + 1
                if whole:
                    yield data[:whole]
                    offset += whole
                size = min(2 * size, _CHUNK_BYTES) if whole else MAX_RECORD_BYTES
            offset = 0

    def _find_record(self, field: int, value: int) -> tuple[int, int, int]:
        """Return where the first record is whose ``field`` (number or time) is at least ``value``.

        That is the index of the file, the offset in it, and the record's number; after the last
        record it is that of the next one.
        """
        index = len(self._begins) - 1
        while index and self._begins[index][field] >= value:
            index -= 1
        low, high = 0, self._sizes[index]
        while high - low > _SCAN_BYTES:
            middle = (low + high) // 2
            start = self._find_start(index, middle)
            head = self._parse_head(index, start) if start < high else None
            if head is None or head[field] >= value:
                high = middle
            else:
                low = start
        return self._scan_records(index, low, field, value)

    def _scan_records(
        self, index: int, offset: int, field: int, value: int
    ) -> tuple[int, int, int]:
        number = self._begins[index][0]
        while offset < self._sizes[index]:
            data = os.pread(self._files[index], 2 * _SCAN_BYTES, offset)
            if b"\n" not in data:
                data = os.pread(self._files[index], MAX_RECORD_BYTES, offset)
            for record in data[: self._sizes[index] - offset].split(b"\n")[:-1]:
                head = _parse_fields(record)
                if head[field] >= value:
                    return index, offset, head[0]
                number = head[0] + 1
                offset += len(record) + 1
        if index + 1 < len(self._files):
            return index + 1, 0, self._begins[index + 1][0]
        return index, offset, number

    def _find_start(self, index: int, offset: int) -> int:
        """Return the offset of the first record that begins at ``offset`` or later."""
        position = offset - 1
        while position < self._sizes[index]:
            data = os.pread(self._files[index], _PROBE_BYTES, position)
            newline = data.find(b"\n")
            if newline >= 0:
                return position + newline + 1
            position += len(data) or self._sizes[index]
        return self._sizes[index]

    def _parse_head(self, index: int, offset: int) -> tuple[int, int, int] | None:
        if offset >= self._sizes[index]:
            return None
        return _parse_fields(os.pread(self._files[index], _PROBE_BYTES, offset))


class MergedLogIndex:
    """The logs of several replicas in one order, at the moment when this is created.

    ``begin`` and ``end`` are the indexes of the first line that is still there, and after the last.
    Lines from the time ``until`` on (Unix time in µs) are not visible yet: while replicas write,
    earlier lines of others may still come before them.
    """

    def __init__(
        self, directory: Path, replicas: Sequence[ReplicaId], *, until: int | None = None
    ) -> None:
        self._logs: list[ReplicaLogIndex] = []
        try:
            for replica in sorted(replicas):
                self._logs.append(ReplicaLogIndex(directory, replica))
        except BaseException:
            self.close()
            raise
        self._ends = {log.name: _find_visible_end(log, until) for log in self._logs}
        self.begin = sum(min(log.begin, self._ends[log.name]) for log in self._logs)
        self.end = sum(self._ends.values())

    @property
    def is_settled(self) -> bool:
        """Whether all lines in the files are visible already."""
        return all(log.end == self._ends[log.name] for log in self._logs)

    def count_until(self, cursor: Cursor) -> int:
        """Return the index of the line at a cursor."""
        return sum(max(cursor.get(log.name, 0), log.begin) for log in self._logs)

    def __enter__(self) -> MergedLogIndex:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        for log in self._logs:
            log.close()

    def find_cursor(self, index: int) -> Cursor:
        """Return the cursor of the line with this index, or of the nearest that is there."""
        if len(self._logs) == 1:
            log = self._logs[0]
            return {log.name: max(log.begin, min(index, self._ends[log.name]))}
        times = [log.times for log in self._logs if log.end > log.begin]
        if not times or index >= self.end:
            return self._ends
        # The first time by whose end more than ``index`` lines were written.
        low, high = min(first for first, _ in times), max(last for _, last in times)
        while low < high:
            middle = (low + high) // 2
            if sum(self._count_before(middle + 1).values()) > index:
                high = middle
            else:
                low = middle + 1
        cursor, after = self._count_before(low), self._count_before(low + 1)
        rest = max(0, index - sum(cursor.values()))
        for name, number in list(cursor.items()):
            taken = min(rest, after[name] - number)
            cursor[name] = number + taken
            rest -= taken
        return cursor

    def _count_before(self, micros: int) -> dict[str, int]:
        return {log.name: min(log.count_before(micros), self._ends[log.name]) for log in self._logs}

    def list_attempts(self, replica: ReplicaId) -> list[AttemptSpan]:
        """Return the attempts of a replica that have printed something, in order."""
        log = next((log for log in self._logs if log.replica == replica), None)
        return log.list_attempts() if log is not None else []

    def find_index(self, replica: ReplicaId, number: int) -> int:
        """Return the index of a line of a replica."""
        log = next((log for log in self._logs if log.replica == replica), None)
        lines = log.read(number, 1) if log is not None else ()
        return self._index_of(lines[0]) if lines else self.end

    def _index_of(self, line: LogLine) -> int:
        if len(self._logs) == 1:
            return line.number
        micros = _micros_of(line)
        before, after = self._count_before(micros), self._count_before(micros + 1)
        return sum(
            line.number
            if log.replica == line.replica
            else (after if log.replica < line.replica else before)[log.name]
            for log in self._logs
        )

    def read(self, cursor: Cursor, count: int) -> list[LogLine]:
        """Return up to ``count`` lines from the cursor on, in order."""
        merged = heapq.merge(
            *(self._read_log(log, cursor, count) for log in self._logs), key=_order_key
        )
        return list(islice(merged, count))

    def _read_log(self, log: ReplicaLogIndex, cursor: Cursor, count: int) -> list[LogLine]:
        number = max(cursor.get(log.name, 0), log.begin)
        return log.read(number, min(count, max(0, self._ends[log.name] - number)))

    def find_text(self, text: str, index: int) -> int | None:
        """Return the index of the first line from ``index`` on that contains ``text``."""
        cursor = self.find_cursor(index)
        found = [log.find_text(text.encode(), cursor[log.name]) for log in self._logs]
        lines = sorted((line for line in found if line is not None), key=_order_key)
        return self._index_of(lines[0]) if lines else None


def _find_visible_end(log: ReplicaLogIndex, until: int | None) -> int:
    """Return the number after the last line from before ``until``.

    Lines from the future do not wait: the clock was set back, and this may take long to pass.
    """
    if until is None or log.count_before(time.time_ns() // 1000 + 1) < log.end:
        return log.end
    return log.count_before(until)


def advance_cursor(cursor: Cursor, lines: Iterable[LogLine]) -> Cursor:
    """Return the cursor after these lines."""
    return {**cursor, **{str(line.replica): line.number + 1 for line in lines}}


def _order_key(line: LogLine) -> tuple[int, ReplicaId]:
    return _micros_of(line), line.replica


def _micros_of(line: LogLine) -> int:
    return round(line.time.timestamp() * 1_000_000)


def _parse_fields(record: bytes) -> tuple[int, int, int]:
    number, attempt, micros, _ = record.split(b" ", 3)
    return int(number), int(micros), int(attempt)


def _whole_size(descriptor: int) -> int:
    """Return the size up to the end of the last whole record: one may be being written."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - MAX_RECORD_BYTES)
    newline = os.pread(descriptor, size - start, start).rfind(b"\n")
    return start + newline + 1 if newline >= 0 else 0
