"""The log of a replica: all output is written once, in order, byte for byte."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from danlu.jobs.local.log_files import LineSplitter, LogReader, LogWriter, MergedLogReader, log_file
from danlu.jobs.types import MAX_LINE_BYTES, LogLine
from tests.jobs.local.support import worker

ID = worker(0)


def writer(directory: Path, *, limit: int = 1 << 20, keep: int = 3) -> LogWriter:
    return LogWriter(log_file(directory, ID), limit=limit, keep=keep)


def read(directory: Path, *, tail: int | None = None, most: int = 1 << 20) -> list[LogLine]:
    reader = LogReader(directory, ID, tail=tail)
    lines = reader.read(most)
    while reader.has_more:
        lines += reader.read(most)
    reader.close()
    return lines


def join_lines(lines: list[LogLine]) -> bytes:
    return b"".join(line.data + (b"\n" if line.whole else b"") for line in lines)


@pytest.mark.parametrize("piece", [1, 7, 1000, 1 << 17])
def test_arbitrary_bytes_round_trip(tmp_path: Path, piece: int) -> None:
    chance = random.Random(piece)
    data = b"\n\n" + chance.randbytes(5000) + b"\r\n\0 W P \n" + b"no newline at the end"
    log = writer(tmp_path)
    stream = LineSplitter(log, 0)
    for at in range(0, len(data), piece):
        stream.feed(data[at : at + piece])
    stream.close()
    log.close()
    lines = read(tmp_path)
    assert join_lines(lines) == data
    assert [line.number for line in lines] == list(range(len(lines)))
    whole = [line.whole for line in lines]
    assert whole == [True] * (len(lines) - 1) + [False] or b"\r" in data
    assert whole.count(True) == data.count(b"\n")


@pytest.mark.parametrize(
    ("pieces", "records"),
    [
        # tqdm: a carriage return before each state; the last one is not held back.
        ([b"\r0%", b"\r50%", b"\r100%\n", b"next\n"], ["\r0%", "\r50%", "\r100%+", "next+"]),
        ([b"\r0%\r50%\r100%", b"next\n"], ["\r0%", "\r50%", "\r100%", "next+"]),
        # One after each state.
        ([b"0%\r", b"50%\r", b"done\n"], ["0%", "\r50%", "\rdone+"]),
        ([b"\x1b[2K\r1", b"\x1b[2K\r2", b"\n"], ["\x1b[2K", "\r1", "\x1b[2K", "\r2", "+"]),
        # Not a progress bar.
        ([b"a\r\nb\r", b"\nc\r\r\n"], ["a\r+", "b\r+", "c\r\r+"]),
        ([b"a", b"b\n"], ["ab+"]),
    ],
)
def test_states_of_a_progress_bar_are_records(
    tmp_path: Path, pieces: list[bytes], records: list[str]
) -> None:
    log = writer(tmp_path)
    stream = LineSplitter(log, 0)
    for piece in pieces:
        stream.feed(piece)
    stream.close()
    log.close()
    lines = read(tmp_path)
    assert join_lines(lines) == b"".join(pieces)
    assert [line.data.decode() + "+" * line.whole for line in lines] == records


@pytest.mark.parametrize("piece", [1000, MAX_LINE_BYTES, 10 * MAX_LINE_BYTES])
def test_an_endless_line_is_cut(tmp_path: Path, piece: int) -> None:
    data = b"x" * (3 * MAX_LINE_BYTES + 5) + b"\nnext\n"
    log = writer(tmp_path)
    stream = LineSplitter(log, 0)
    for at in range(0, len(data), piece):
        stream.feed(data[at : at + piece])
    stream.close()
    log.close()
    lines = read(tmp_path)
    assert [len(line.data) for line in lines] == [MAX_LINE_BYTES] * 3 + [5, 4]
    assert [line.whole for line in lines] == [False] * 3 + [True, True]
    assert [line.continues for line in lines] == [not line.whole for line in lines]
    assert join_lines(lines) == data


def test_a_reader_loses_and_repeats_nothing_across_rotations(tmp_path: Path) -> None:
    log = writer(tmp_path, limit=2000, keep=50)
    reader = LogReader(tmp_path, ID)
    chance, got, content = random.Random(1), [], 0
    for _ in range(300):
        number = chance.randint(0, 30)
        log.write([b"line %d" % (content + index) for index in range(number)], attempt=0)
        content += number
        if chance.random() < 0.1:
            got += reader.read(1 << 20)
    got += reader.read(1 << 20)
    reader.close()
    log.close()
    assert len(list(tmp_path.iterdir())) > 10
    assert [line.data for line in got] == [b"line %d" % index for index in range(content)]


def test_a_late_reader_starts_with_the_oldest_file(tmp_path: Path) -> None:
    log = writer(tmp_path, limit=100, keep=2)
    for number in range(50):
        log.write([b"%d" % number], attempt=0)
    log.close()
    numbers = [line.number for line in read(tmp_path)]
    assert numbers == list(range(numbers[0], 50))
    assert numbers[0] > 30


@pytest.mark.parametrize("most", [0, 1, 100, 5000])
def test_batches_add_up_to_the_whole_log(tmp_path: Path, most: int) -> None:
    log = writer(tmp_path, limit=2000, keep=50)
    for number in range(500):
        log.write([b"%d" % number], attempt=0)
    log.close()
    assert [int(line.data) for line in read(tmp_path, most=most)] == list(range(500))


def test_a_batch_is_limited_while_the_log_grows(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.write([b"x" * 100] * 1000, attempt=0)
    reader = LogReader(tmp_path, ID)
    for _ in range(5):
        assert 0 < len(reader.read(1000)) < 20
        assert reader.has_more
    reader.close()
    log.close()


def test_lines_of_replicas_are_ordered_by_time_across_batches(tmp_path: Path) -> None:
    logs = [
        LogWriter(log_file(tmp_path, worker(index)), limit=1 << 30, keep=3) for index in range(2)
    ]
    # The first writes so much that its lines take several turns; both write all the time.
    for number in range(300):
        logs[0].write([b"%d" % number + b"x" * 8000], attempt=0)
        logs[1].write([b"%d" % number], attempt=0)
    for log in logs:
        log.close()
    readers = MergedLogReader(tmp_path)
    turns = [readers.read([worker(0), worker(1)])]
    while readers.has_more:
        turns.append(readers.read([]))
    readers.close()
    lines = [line for turn in turns for line in turn]
    assert len(turns) > 3
    assert len(lines) == 600
    assert [line.time for line in lines] == sorted(line.time for line in lines)


def test_newest_skips_lines_that_are_far_behind(tmp_path: Path) -> None:
    log = writer(tmp_path, limit=4 << 20, keep=9)
    line = b"x" * 1000
    log.write([line], attempt=0)
    readers = MergedLogReader(tmp_path, newest=True)
    got = readers.read([ID])
    for _ in range(20):
        log.write([line] * 1000, attempt=0)
    log.close()
    while text := readers.read([]):
        got += text
    readers.close()
    numbers = [line.number for line in got]
    assert numbers[0] == 0
    assert numbers[-1] == 20_000
    assert 100 < len(numbers) < 500
    assert numbers[1:] == list(range(numbers[1], 20_001))


def test_newest_includes_the_previous_file_after_a_rotation(tmp_path: Path) -> None:
    log = writer(tmp_path, limit=1_100_000, keep=9)
    log.write([b"first"], attempt=0)
    readers = MergedLogReader(tmp_path, newest=True)
    assert len(readers.read([ID])) == 1
    for _ in range(4):
        log.write([b"x" * 1000] * 1050, attempt=0)
    log.write([b"x" * 100_000], attempt=0)
    log.write([b"last"], attempt=0)
    log.close()
    assert log_file(tmp_path, ID).stat().st_size < 200_000
    lines = readers.read([])
    readers.close()
    assert lines[-1].data == b"last"
    assert len(lines) > 100


@pytest.mark.parametrize("tail", [0, 1, 5, 1000])
def test_a_tail_returns_the_last_lines(tmp_path: Path, tail: int) -> None:
    log = writer(tmp_path, limit=300, keep=50)
    for number in range(60):
        log.write([b"%d" % number], attempt=number // 20)
    log.close()
    lines = read(tmp_path, tail=tail)
    assert [int(line.data) for line in lines] == list(range(60))[60 - min(tail, 60) :]


def test_an_empty_log_has_no_lines(tmp_path: Path) -> None:
    assert read(tmp_path) == []
    assert read(tmp_path, tail=3) == []


def test_an_incomplete_record_is_not_read(tmp_path: Path) -> None:
    log = writer(tmp_path)
    log.write([b"first"], attempt=0)
    log.close()
    path = log_file(tmp_path, ID)
    record = path.read_bytes()
    os.truncate(path, len(record) - 3)
    reader = LogReader(tmp_path, ID)
    assert reader.read(1 << 20) == []
    with path.open("ab") as file:
        file.write(record[-3:])
    assert [line.data for line in reader.read(1 << 20)] == [b"first"]
    reader.close()
