"""Logs of containers as lines, however they are split on the wire."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from danlu.kube.pod_logs import MAX_LINE_BYTES, PodLogLine, _LineSplitter

STAMP = b"2026-01-02T03:04:05.123456789Z "


def pieces(*chunks: bytes) -> list[PodLogLine]:
    splitter = _LineSplitter()
    results = [line for chunk in chunks for line in splitter.feed(chunk)]
    return [*results, *splitter.flush()]


def test_lines_are_the_same_wherever_their_bytes_are_torn() -> None:
    text = STAMP + b"one\n" + STAMP + b"two words\n" + STAMP + b"\n"
    whole = pieces(text)
    assert [line.data for line in whole] == [b"one", b"two words", b""]
    for offset in range(len(text)):
        assert pieces(text[:offset], text[offset:]) == whole


@pytest.mark.parametrize(
    ("stamp", "moment"),
    [
        ("2026-01-02T03:04:05.123456789Z", (123456, 789)),
        ("2026-01-02T05:04:05.123456789+02:00", (123456, 789)),
        ("2026-01-02T03:04:05Z", (0, 0)),
        ("2026-01-02T03:04:05.5Z", (500000, 0)),
    ],
)
def test_times_are_read_to_the_nanosecond_in_any_zone(stamp: str, moment: tuple[int, int]) -> None:
    (piece,) = pieces(stamp.encode() + b" x\n")
    microseconds, rest = moment
    assert piece.timestamp == datetime(2026, 1, 2, 3, 4, 5, microseconds, tzinfo=UTC)
    assert piece.time % 1000 == rest


def test_a_long_line_comes_in_pieces_of_one_time() -> None:
    text = b"a" * (3 * MAX_LINE_BYTES + 1)
    result = pieces(STAMP + text, b"b\n", STAMP + b"next\n")
    assert [line.whole for line in result] == [False, False, False, True, True]
    assert [len(line.data) for line in result[:-1]] == [*[MAX_LINE_BYTES] * 3, 2]
    assert b"".join(line.data for line in result[:-1]) == text + b"b"
    assert len({line.time for line in result}) == 1
    assert result[-1].data == b"next"


def test_a_line_without_newline_is_incomplete() -> None:
    (piece,) = pieces(STAMP + b"half")
    assert (piece.data, piece.whole) == (b"half", False)
