"""Random access to logs gives the lines that reading everything gives, wherever it begins."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from danlu.jobs.local.log_files import LogWriter, format_record, log_file
from danlu.jobs.local.log_index import MergedLogIndex, advance_cursor
from danlu.jobs.types import LogLine
from danlu.training.types import ReplicaId
from tests.jobs.local.support import worker

_START = datetime(2026, 1, 2, tzinfo=UTC)


def write_logs(
    directory: Path, count: int, *, replicas: int, limit: int = 1 << 20, keep: int = 7
) -> list[LogLine]:
    """Write lines of random lengths and replicas, some at the same time, in order."""
    chance = random.Random(count)
    writers = [
        LogWriter(log_file(directory, worker(index)), limit=limit, keep=keep)
        for index in range(replicas)
    ]
    numbers = [0] * replicas
    lines: list[LogLine] = []
    time = _START
    for _ in range(count):
        index = chance.randrange(replicas)
        time += timedelta(microseconds=chance.choice([0, 0, 1, 5000]))
        text = f"line {len(lines)} ".encode() + b"x" * chance.choice([0, 10, 300, 9000])
        line = LogLine(worker(index), 0, numbers[index], time, text)
        numbers[index] += 1
        micros = round(time.timestamp() * 1_000_000)
        writers[index].append_records(format_record(line, micros))
        lines.append(line)
    for writer in writers:
        writer.close()
    return sorted(lines, key=lambda line: (line.time, line.replica))


def ids(replicas: int) -> list[ReplicaId]:
    return [worker(index) for index in range(replicas)]


@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_every_window_is_that_part_of_the_merged_log(tmp_path: Path, replicas: int) -> None:
    lines = write_logs(tmp_path, 700, replicas=replicas)
    with MergedLogIndex(tmp_path, ids(replicas)) as index:
        assert (index.begin, index.end) == (0, 700)
        for start in (0, 1, 99, 350, 698, 699):
            cursor = index.find_cursor(start)
            assert index.count_until(cursor) == start
            assert index.read(cursor, 40) == lines[start : start + 40]
            line = lines[start]
            assert index.find_index(line.replica, line.number) == start
        assert index.read(index.find_cursor(700), 40) == []


def test_reading_on_from_the_last_line_yields_each_line_once(tmp_path: Path) -> None:
    lines = write_logs(tmp_path, 500, replicas=3)
    seen: list[LogLine] = []
    with MergedLogIndex(tmp_path, ids(3)) as index:
        cursor = index.find_cursor(0)
        while batch := index.read(cursor, 37):
            seen += batch
            cursor = advance_cursor(cursor, batch)
    assert seen == lines


def test_indexes_count_lines_whose_file_was_deleted(tmp_path: Path) -> None:
    lines = write_logs(tmp_path, 600, replicas=1, limit=100_000, keep=2)
    with MergedLogIndex(tmp_path, ids(1)) as index:
        assert 0 < index.begin < index.end == 600
        first = index.read(index.find_cursor(0), 5)
        assert first == lines[index.begin : index.begin + 5]


def test_text_is_found_from_any_line_on_in_any_case(tmp_path: Path) -> None:
    lines = write_logs(tmp_path, 400, replicas=2)
    with MergedLogIndex(tmp_path, ids(2)) as index:
        wanted = next(place for place, line in enumerate(lines) if b"line 250 " in line.data)
        assert index.find_text("LINE 250 ", 0) == wanted
        assert index.find_text("line 250 ", wanted) == wanted
        assert index.find_text("line 250 ", wanted + 1) is None
        # The head of a record is not its text.
        assert index.find_text(f"{_START.timestamp():.0f}", 0) is None


def test_record_that_is_being_written_is_not_a_line_yet(tmp_path: Path) -> None:
    write_logs(tmp_path, 10, replicas=1)
    with log_file(tmp_path, worker(0)).open("ab") as file:
        file.write(b"10 0 1767312000999999 W half")
    with MergedLogIndex(tmp_path, ids(1)) as index:
        assert index.end == 10


def test_logs_that_do_not_exist_are_empty(tmp_path: Path) -> None:
    with MergedLogIndex(tmp_path, ids(2)) as index:
        assert (index.begin, index.end) == (0, 0)
        assert index.read(index.find_cursor(5), 10) == []
        assert index.find_text("line", 0) is None
