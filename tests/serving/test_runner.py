"""The program inside packed images: schemas, inputs and outputs."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pytest

from danlu.serving.predictor_values import (
    InvalidInputError,
    convert_input,
    decode_value,
    describe_predictor,
    encode_value,
)


class Typed:
    def predict(
        self,
        count: int,
        rate: float,
        name: str,
        data: bytes,
        words: list[str],
        options: dict[str, int],
        pixels: Annotated[np.ndarray, "float32", (None, 2)],
        is_on: bool = True,
    ) -> dict[str, float]:
        raise NotImplementedError


class Single:
    def predict(self, rows: list):  # type: ignore[no-untyped-def, type-arg]
        raise NotImplementedError


VALID: dict[str, Any] = {
    "count": 1,
    "rate": 2,
    "name": "x",
    "data": "aGk=",
    "words": ["a"],
    "options": {"a": 1},
    "pixels": [[1, 2], [3, 4]],
}


def test_the_schema_follows_from_annotations() -> None:
    assert describe_predictor(Typed()) == {
        "inputs": {
            "count": {"type": "integer"},
            "rate": {"type": "number"},
            "name": {"type": "string"},
            "data": {"type": "bytes"},
            "words": {"type": "list"},
            "options": {"type": "object"},
            "pixels": {"type": "array", "dtype": "float32", "shape": [None, 2]},
            "is_on": {"type": "boolean", "optional": True},
        },
        "output": {"type": "object"},
    }


def test_inputs_are_converted_by_the_schema() -> None:
    arguments = convert_input(VALID, describe_predictor(Typed()))
    assert arguments["data"] == b"hi"
    assert arguments["pixels"].dtype == np.float32
    assert arguments["pixels"].shape == (2, 2)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("count", "1", "count must be of type integer, not str"),
        ("count", True, "count must be of type integer, not bool"),
        ("words", {}, "words must be of type list, not dict"),
        ("pixels", [[1, 2, 3]], r"pixels must have the shape \[any, 2\], not \[1, 3\]"),
        ("pixels", [["a", "b"]], "pixels must be of type float32, not text"),
    ],
)
def test_an_input_of_another_type_is_rejected(name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        convert_input({**VALID, name: value}, describe_predictor(Typed()))


def test_a_single_parameter_needs_no_name() -> None:
    schema = describe_predictor(Single())
    assert convert_input([1], schema) == convert_input({"rows": [1]}, schema) == {"rows": [1]}


def test_missing_and_unknown_parameters_are_rejected() -> None:
    with pytest.raises(InvalidInputError, match="an object with count, rate"):
        convert_input({"count": 1}, describe_predictor(Typed()))


def test_values_survive_encoding() -> None:
    value = {
        "a": [1, 2.5, None, True, "x", float("inf")],
        "b": b"\0\xff",
        "c": np.arange(6.0).reshape(2, 3),
    }
    found = decode_value(encode_value(value))
    assert found["a"] == value["a"]
    assert found["b"] == value["b"]
    assert np.array_equal(found["c"], np.arange(6.0).reshape(2, 3))
    assert encode_value({"a": np.array([[1, 2]])}, plain=True) == {"a": [[1, 2]]}
    assert encode_value(np.float32(0.5)) == 0.5


def test_an_output_without_a_json_form_is_rejected() -> None:
    with pytest.raises(TypeError, match="predict returned a object"):
        encode_value(object())
