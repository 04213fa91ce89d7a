"""What ``--sweep`` takes, and the points it makes."""

from __future__ import annotations

import pytest

from danlu.commands.sweepspace import grid, parse_axes, parse_axis
from danlu.errors import UsageError


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


def test_steps_leave_no_dust_behind() -> None:
    assert parse_axis("drop=0.1:0.7:0.2").values() == ("0.1", "0.3", "0.5", "0.7")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "not a sweep"),
        ("=1,2", "not a sweep"),
        ("--lr=1,2", "not a sweep"),
        ("lr=", "empty value"),
        ("lr=1,,2", "empty value"),
        ("lr=1,1", "one value twice"),
        ("depth=6:2", "ends before it begins"),
        ("depth=2:6:0", "leads nowhere"),
        ("depth=2:6:-1", "leads nowhere"),
        ("depth=2:6:fine", "no number as its step"),
        ("rate=0:1:log", "positive numbers"),
    ],
)
def test_what_is_no_axis_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_axis(text)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["drop=0.0:0.5"], "how fine is drop"),
        (["a=1:10001"], "10001 values"),
        (["a=1:1e9:log10001"], "10001 values"),
        (["a=1:101", "b=1:100"], "10100 points"),
    ],
)
def test_a_grid_without_end_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        grid(parse_axes(texts))


def test_an_axis_comes_once() -> None:
    with pytest.raises(UsageError, match="lr is swept twice"):
        parse_axes(["lr=0.1", "lr=0.2"])


def test_a_grid_has_every_combination_with_the_last_axis_changing_first() -> None:
    points = grid(parse_axes(["lr=0.1,0.01", "depth=2:3"]))
    assert points == (
        {"lr": "0.1", "depth": "2"},
        {"lr": "0.1", "depth": "3"},
        {"lr": "0.01", "depth": "2"},
        {"lr": "0.01", "depth": "3"},
    )
