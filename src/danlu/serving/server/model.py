"""A predictor behind the protocols: its metadata, its inputs from tensors, its outputs as tensors.

``runner`` is the module that packing copies to the image as ``run.py``; it converts and checks
values.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from .tensors import OutputTensor, describe_array, make_output

#: Types of parameters of which several requests can be one call, along the first axis.
_ROWS = ("array", "tensor", "list")
_RELATIVE, _ABSOLUTE = 1e-3, 1e-5


class ServedModel:
    """A loaded predictor with its name, and the example inputs and outputs of its image.

    Attributes:
        schema: Of its inputs and output, as :func:`describe_predictor` of the runner gives it.
        batches: Whether requests are called together: all inputs have rows, and two requests
            together gave what each gives alone.
    """

    def __init__(
        self,
        predictor: Any,
        runner: ModuleType,
        golden: Mapping[str, Any],
        *,
        name: str = "model",
        version: str = "1",
    ) -> None:
        self.name = name
        self.version = version
        self.schema: dict[str, Any] = runner.describe_predictor(predictor)
        self.examples: Sequence[Mapping[str, Any]] = golden["examples"]
        self._predict = predictor.predict
        self._runner = runner
        self._torch: Any = None
        inputs = self.schema["inputs"]
        # Arrays until the call, so that batches are made of arrays.
        self._checked = {
            "inputs": {
                key: {**about, "type": "array"} if about["type"] == "tensor" else about
                for key, about in inputs.items()
            }
        }
        self._tensors = [key for key, about in inputs.items() if about["type"] == "tensor"]
        self.batches = False
        self.invalid_input: type[Exception] = runner.InvalidInputError

    # -- inputs -----------------------------------------------------------------------------------

    def convert_input(self, value: Any) -> dict[str, Any]:
        """Return the arguments for an input in JSON's types; raises ``InvalidInputError``."""
        try:
            with np.errstate(over="ignore"):  # infinity, without a warning in the log
                converted: dict[str, Any] = self._runner.convert_input(value, self._checked)
        except self.invalid_input:
            raise
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise self.invalid_input(f"invalid input: {error}") from error
        return converted

    def convert_tensors(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments for tensors by parameter; raises ``InvalidInputError``."""
        inputs = self.schema["inputs"]
        for key in tensors:
            if key not in inputs:
                known = ", ".join(inputs)
                raise self.invalid_input(f"the model has no input {key!r}: {known}")
        values = {key: self._convert_tensor(key, array) for key, array in tensors.items()}
        missing = [
            key for key, about in inputs.items() if key not in values and not about.get("optional")
        ]
        if missing:
            raise self.invalid_input(f"input {missing[0]!r} is missing")
        return self.convert_input(values)

    def _convert_tensor(self, key: str, array: Any) -> Any:
        kind = self.schema["inputs"][key]["type"]
        if kind in ("array", "tensor"):
            return array
        if kind in ("integer", "number", "boolean", "string", "bytes") and array.size != 1:
            raise self.invalid_input(f"{key} must have one element, not {array.size}")
        if array.dtype != object:
            values = array.tolist()
            return array.reshape(-1)[0].item() if array.size == 1 and kind != "list" else values
        if kind == "bytes":
            return array.reshape(-1)[0]
        try:
            texts = [item.decode() for item in array.reshape(-1)]
            if kind == "string" or (kind == "list" and len(texts) != 1):
                return texts[0] if kind == "string" else texts
            value = [json.loads(text) for text in texts]
        except ValueError as error:
            if kind == "list":
                return texts
            raise self.invalid_input(f"{key}: not text of JSON: {error}") from error
        if kind == "list" and not isinstance(value[0], list):
            return texts
        return value[0] if len(value) == 1 else value

    # -- calls ------------------------------------------------------------------------------------

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """Call the predictor; the result has arrays of NumPy instead of any framework's."""
        if self._tensors:
            if self._torch is None:
                self._torch = importlib.import_module("torch")
            arguments = dict(arguments)
            for key in self._tensors:
                if key in arguments:
                    array = np.ascontiguousarray(arguments[key])
                    arguments[key] = self._torch.from_numpy(array)
        return self._runner.plain_value(self._predict(**arguments))

    def warm_up(self) -> None:
        """Call the predictor with its examples, and find out whether requests can be batched."""
        for example in self.examples:
            self.call(self.convert_input(example["input"]))
        self.batches = bool(self.examples) and self._can_batch()

    def _can_batch(self) -> bool:
        """Return whether two different requests together give what each gives alone."""
        first = self.convert_input(self.examples[0]["input"])
        try:
            second = {name: _vary_rows(value) for name, value in first.items()}
            sizes = [self.measure_rows(request) for request in (first, second)]
            if None in (key for _, key in sizes) or sizes[0][1] != sizes[1][1]:
                return False
            alone = [self.call(request) for request in (first, second)]
            together = self.call(self.merge([first, second]))
            parts = self.split(together, [rows for rows, _ in sizes])
        except Exception:  # whatever it raises: it cannot
            return False
        return not _is_close(*alone) and all(map(_is_close, alone, parts))

    def measure_rows(self, arguments: Mapping[str, Any]) -> tuple[int, Any]:
        """Return the rows of a request, and what must be equal to batch it; None never is."""
        inputs = self.schema["inputs"]
        rows, key = 0, []
        for name, value in arguments.items():
            about = inputs[name]
            if about["type"] not in _ROWS or (about.get("shape") or [None])[0] not in (None, -1):
                return 1, None
            if isinstance(value, list):
                count, kind = len(value), ("list",)
            elif value.ndim:
                count, kind = len(value), (value.dtype.str, *value.shape[1:])
            else:
                return 1, None
            if count == 0 or (rows and count != rows):
                return 1, None
            rows = count
            key.append((name, kind))
        return (rows, tuple(key)) if rows else (1, None)

    def merge(self, requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the arguments of a batch."""
        merged: dict[str, Any] = {}
        for name, first in requests[0].items():
            values = [request[name] for request in requests]
            if isinstance(first, list):
                merged[name] = [row for value in values for row in value]
            else:
                merged[name] = np.concatenate(values)
        return merged

    def split(self, result: Any, counts: Sequence[int]) -> list[Any]:
        """Return the result of each request of a batch; raises :class:`ValueError`."""
        if isinstance(result, dict):
            parts = {key: self.split(value, counts) for key, value in result.items()}
            return [{key: part[i] for key, part in parts.items()} for i in range(len(counts))]
        is_array = isinstance(result, np.ndarray)
        if not (isinstance(result, list) or is_array) or (is_array and result.ndim == 0):
            raise ValueError("the result has no rows")
        if len(result) != sum(counts):
            raise ValueError(f"the result has {len(result)} rows, not {sum(counts)}")
        parts_list, start = [], 0
        for count in counts:
            parts_list.append(result[start : start + count])
            start += count
        return parts_list

    # -- outputs ----------------------------------------------------------------------------------

    def list_outputs(self, result: Any) -> list[OutputTensor]:
        """Return the tensors of a result: one for each key of a dictionary, else ``output``."""
        named = result if isinstance(result, dict) and result else {"output": result}
        return [
            make_output(
                str(name),
                value
                if isinstance(value, (np.ndarray, bytes, str)) or _is_texts(value)
                else self._runner.encode_value(value, plain=True),
            )
            for name, value in named.items()
        ]

    def encode_example(self) -> Any:
        """Return an example input in JSON's types, as clients send it; None without one."""
        if not self.examples:
            return None
        value = self._runner.decode_value(self.examples[0]["input"])
        return self._runner.encode_value(value, plain=True)

    def encode_result(self, result: Any) -> Any:
        """Return a result in JSON's types, arrays as nested lists."""
        return self._runner.encode_value(result, plain=True)

    def describe(self) -> dict[str, Any]:
        """Return the model's metadata in the Open Inference Protocol."""
        example = self.examples[0] if self.examples else {"input": {}, "output": None}
        known: dict[str, Any] = {}
        if self.examples:
            known = self.convert_input(example["input"])
        inputs = []
        for name, about in self.schema["inputs"].items():
            datatype, shape = _describe_input(about, known.get(name))
            inputs.append({"name": name, "datatype": datatype, "shape": shape})
        outputs = []
        for output in self.list_outputs(self._runner.decode_value(example["output"])):
            datatype, shape = describe_array(output.array)
            outputs.append({"name": output.name, "datatype": datatype, "shape": shape})
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": "danlu_python",
            "inputs": inputs,
            "outputs": outputs,
        }


def _is_texts(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, (bytes, str)) for item in value)
    )


def _describe_input(about: Mapping[str, Any], example: Any) -> tuple[str, list[int]]:
    """Return datatype and shape of a parameter: as annotated, else as in the example."""
    scalars = {"integer": "INT64", "number": "FP64", "boolean": "BOOL"}
    if about["type"] in scalars:
        return scalars[about["type"]], [1]
    if about["type"] in _ROWS and example is not None:
        try:
            datatype, shape = describe_array(np.asarray(example))
        except ValueError:  # lists of different lengths
            return "BYTES", [1]
        if about.get("shape"):
            shape = [-1 if length is None else length for length in about["shape"]]
        return datatype, shape
    return "BYTES", [1]


def _vary_rows(value: Any) -> Any:
    """Return other rows with the same elements, one row less if there are several."""
    array = np.asarray(value)
    if array.dtype.kind in "biuf":
        rows = np.roll(array, 1).astype(array.dtype)
        other = rows if isinstance(value, np.ndarray) else rows.tolist()
    else:
        other = value[::-1]
    return other[: max(1, len(other) - 1)]


def _is_close(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return (
            isinstance(second, dict)
            and set(first) == set(second)
            and all(_is_close(value, second[key]) for key, value in first.items())
        )
    one, other = np.asarray(first), np.asarray(second)
    if one.shape != other.shape or one.dtype.kind != other.dtype.kind:
        return False
    if one.dtype.kind in "fc":
        return bool(np.allclose(one, other, _RELATIVE, _ABSOLUTE, equal_nan=True))
    return bool((one == other).all())
