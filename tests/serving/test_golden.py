"""Outputs are compared with a tolerance, and whatever a container reports is survived."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from danlu.serving.golden import compare_outputs
from danlu.serving.predictor_values import encode_value


def array(values: Any, kind: str = "float32") -> Any:
    return encode_value(np.array(values, kind))


def test_numbers_within_the_tolerance_are_equal_and_the_largest_difference_is_named() -> None:
    old = [{"digit": 7, "scores": array([[0.25, 0.5], [1.0, 2.0]], "float64")}]
    new = [{"digit": 7, "scores": array([[0.25, 0.5], [1.0, 2.0000004]], "float64")}]
    found = compare_outputs(old, new)
    assert found.is_equal
    assert found.values == 5
    assert found.place == "[0].scores[1, 1]"
    assert found.largest == pytest.approx(4e-7, rel=1e-6)
    assert not compare_outputs(old, new, tolerance=1e-8).is_equal


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8", "uint16", "int64"])
def test_arrays_of_each_type_are_compared_by_value(kind: str) -> None:
    assert compare_outputs([array([1, 2, 3], kind)], [array([1, 2, 3], kind)]).values == 3
    changed = compare_outputs([array([1, 2, 3], kind)], [array([1, 2, 4], kind)])
    assert str(changed.differences[0]).startswith("[0][2]: 3")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (1, 2),
        (1, 1.5),
        (1, True),
        ("a", "b"),
        ([1, 2], [1]),
        ({"a": 1}, {"b": 1}),
        (float("nan"), 0.0),
        (float("inf"), float("-inf")),
        (1.0, "1.0"),
        (10**400, 1.0),
    ],
)
def test_other_values_differ(old: Any, new: Any) -> None:
    assert not compare_outputs([old], [new]).is_equal


def test_nan_equals_nan() -> None:
    assert compare_outputs(
        [[float("nan"), array([np.nan])]], [[float("nan"), array([np.nan])]]
    ).is_equal


@pytest.mark.parametrize(
    "about",
    [
        None,
        {},
        {"dtype": "float32", "shape": [2], "data": "AAAA"},
        {"dtype": "float32", "shape": [-1], "data": ""},
        {"dtype": "object", "shape": [0], "data": ""},
        {"dtype": "float32", "shape": [10**30], "data": ""},
        {"dtype": ["x"], "shape": "ab", "data": 7},
        {"dtype": "float32", "shape": [1], "data": "not base64!"},
    ],
)
def test_an_invalid_array_is_a_difference(about: Any) -> None:
    assert not compare_outputs([array([1.0])], [{"$array": about}]).is_equal


def test_deep_nesting_is_a_difference() -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    assert not compare_outputs([deep], [deep]).is_equal
