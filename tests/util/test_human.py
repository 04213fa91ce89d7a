from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.util.human import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("10GB", 10**10),
        ("10gb", 10**10),
        ("10 G", 10**10),
        ("512MiB", 512 << 20),
        ("1.5KiB", 1536),
        ("8.1TB", 8_100_000_000_000),
        ("7b", 7),
    ],
)
def test_size_is_parsed(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1", "1iB", "1 XB", "1e9", "1.GB", "١GB"[1:], "1GB1"])
def test_invalid_size_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="invalid size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (9949, "9.9 kB"),
        (9950, "10 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (683_000_000, "683 MB"),
        (2 * 10**18, "2000 PB"),
        (-1500, "-1.5 kB"),
    ],
)
def test_size_is_formatted(count: int, text: str) -> None:
    assert format_size(count) == text


@given(st.integers(0, 10**15))
def test_formatted_size_parses_to_the_same_digits(count: int) -> None:
    assert parse_size(format_size(count)) == pytest.approx(count, rel=0.06)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1h30m", 5400), ("1h 30m", 5400), ("2d", 172800), ("250ms", 0.25)],
)
def test_duration_is_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1y", "-1s", "1h30"])
def test_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.04, "40 ms"),
        (0.9999, "1.0 s"),
        (1.24, "1.2 s"),
        (59.99, "1 min"),
        (125, "2 min 5 s"),
        (3600, "1 h"),
        (11520, "3 h 12 min"),
        (187200, "2 d 4 h"),
    ],
)
def test_duration_is_formatted(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
