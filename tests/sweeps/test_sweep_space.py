"""The values of ``--sweep`` and the points they give."""

from __future__ import annotations

import pytest

from danlu.errors import UsageError
from danlu.sweeps.space import build_grid, parse_axes, parse_axis


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("lr=0.1,0.01", ["0.1", "0.01"]),
        ("optimizer=adam,sgd", ["adam", "sgd"]),
        ("depth=2:6", ["2", "3", "4", "5", "6"]),
        ("depth=2:6:2", ["2", "4", "6"]),
        ("depth=2:7:2", ["2", "4", "6"]),
        ("shift=-1:1", ["-1", "0", "1"]),
        ("drop=0:0.3:0.1", ["0.0", "0.1", "0.2", "0.3"]),
        ("drop=0.1:0.3:0.1", ["0.1", "0.2", "0.3"]),
        ("rate=1e-4:1e-1:log", ["0.0001", "0.001", "0.01", "0.1"]),
        ("rate=1e-4:5e-2:log", ["0.0001", "0.001", "0.01"]),
        ("rate=0.01:1:log5", ["0.01", "0.0316227766017", "0.1", "0.316227766017", "1.0"]),
        ("width=8:128:log5", ["8", "16", "32", "64", "128"]),
        ("width=1:3:log9", ["1", "2", "3"]),
        ("one=3:3", ["3"]),
        ("model=org/a:v1,org/b:v2", ["org/a:v1", "org/b:v2"]),
        ("at=10:30,11:30", ["10:30", "11:30"]),
        ("text=a=b", ["a=b"]),
    ],
)
def test_values_of_an_axis(text: str, values: list[str]) -> None:
    assert list(parse_axis(text).values()) == values


def test_steps_have_no_rounding_errors() -> None:
    assert parse_axis("drop=0.1:0.7:0.2").values() == ("0.1", "0.3", "0.5", "0.7")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "invalid sweep"),
        ("=1,2", "invalid sweep"),
        ("--lr=1,2", "invalid sweep"),
        ("lr=", "empty value"),
        ("lr=1,,2", "empty value"),
        ("lr=1,1", "duplicate value"),
        ("depth=6:2", "ends before it starts"),
        ("depth=2:6:0", "invalid step"),
        ("depth=2:6:-1", "invalid step"),
        ("depth=2:6:fine", "invalid step"),
        ("rate=0:1:log", "must be positive"),
    ],
)
def test_invalid_axis_is_an_error(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_axis(text)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["drop=0.0:0.5"], "drop needs a step"),
        (["a=1:10001"], "too many values of \\w+: 10001"),
        (["a=1:1e9:log10001"], "too many values of \\w+: 10001"),
        (["a=1:101", "b=1:100"], "too many points: 10100"),
    ],
)
def test_too_large_grid_is_an_error(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build_grid(parse_axes(texts))


def test_duplicate_axis_is_an_error() -> None:
    with pytest.raises(UsageError, match="duplicate parameter lr"):
        parse_axes(["lr=0.1", "lr=0.2"])


def test_grid_varies_the_last_axis_fastest() -> None:
    points = build_grid(parse_axes(["lr=0.1,0.01", "depth=2:3"]))
    assert points == (
        {"lr": "0.1", "depth": "2"},
        {"lr": "0.1", "depth": "3"},
        {"lr": "0.01", "depth": "2"},
        {"lr": "0.01", "depth": "3"},
    )
