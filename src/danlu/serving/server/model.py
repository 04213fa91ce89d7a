"""A predictor behind the protocols: its metadata, inputs from tensors, outputs as tensors."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .tensors import InputTensor, OutputTensor, describe_array, make_output

try:
    from .. import predictor_values as values
except ImportError:  # in the image
    import predictor_values as values  # type: ignore[import-not-found,no-redef]

#: Types of parameters of which several requests can be one call, along the first axis: arrays of
#: one type and shape. Lists are joined if the predictor says that it takes each row by itself.
_ARRAYS = frozenset(("array", "tensor"))
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
        golden: Mapping[str, Any],
        *,
        name: str = "model",
        version: str = "1",
    ) -> None:
        self.name = name
        self.version = version
        self.schema: dict[str, Any] = values.describe_predictor(predictor)
        self.examples = [
            {key: values.decode_value(value) for key, value in example.items()}
            for example in golden["examples"]
        ]
        self._predict = predictor.predict
        self._torch: Any = None
        self.inputs: dict[str, Any] = self.schema["inputs"]
        # Arrays until the call, so that batches are made of arrays.
        self._checked = {
            "inputs": {
                key: {**about, "type": "array"} if about["type"] == "tensor" else about
                for key, about in self.inputs.items()
            }
        }
        self._tensors = [key for key, about in self.inputs.items() if about["type"] == "tensor"]
        self._needed = values.list_needed(self.inputs)
        joined = {*_ARRAYS, "list"} if getattr(predictor, "batches", False) is True else _ARRAYS
        #: By parameter of which several requests can be one call: whether it is an array.
        self._rows = {
            key: about["type"] in _ARRAYS
            for key, about in self.inputs.items()
            if about["type"] in joined and (about.get("shape") or [None])[0] in (None, -1)
        }
        self.batches = False

    # -- inputs -----------------------------------------------------------------------------------

    def convert_input(self, value: Any) -> dict[str, Any]:
        """Return the arguments for an input; raises ``InvalidInputError``."""
        try:
            converted: dict[str, Any] = values.convert_input(value, self._checked)
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise values.InvalidInputError(f"invalid input: {error}") from error
        return converted

    def convert_tensors(self, tensors: Mapping[str, InputTensor]) -> dict[str, Any]:
        """Return the arguments for tensors by parameter, or by column of the table.

        Raises ``InvalidInputError``.
        """
        inputs = self.inputs
        arguments: dict[str, Any] = {}
        columns: dict[str, Any] = {}
        for key, tensor in tensors.items():
            if key in inputs:
                arguments[key] = _read_tensor(key, tensor, inputs[key])
            else:
                columns[key] = _read_elements(key, tensor)
        if columns:
            table = values.find_table(inputs)
            about = inputs[table] if table else {}
            if (
                table is None
                or table in arguments
                or not ("columns" in about or about.get("type") == "frame")
            ):
                known = ", ".join(inputs)
                name = next(iter(columns))
                raise values.InvalidInputError(f"the model has no input {name!r}: {known}")
            if about["type"] != "object":  # whose arrays need not have as many rows
                arguments[table] = values.make_column_table(columns)
            else:
                arguments[table] = columns
        for key in self._needed:
            if key not in arguments:
                raise values.InvalidInputError(f"input {key!r} is missing")
        return self.convert_input(arguments)

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
        return values.plain_value(self._predict(**arguments))

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
        rows, key = 0, []
        for name, value in arguments.items():
            if name not in self._rows or (self._rows[name] and not value.ndim):
                return 1, None
            count = len(value)
            if count == 0 or (rows and count != rows):
                return 1, None
            rows = count
            key.append((name, value.dtype, value.shape[1:]) if self._rows[name] else name)
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
        if values.is_frame(result):
            result = values.read_frame(result)
        if isinstance(result, values.Table):
            result = result.columns
        named = result if isinstance(result, dict) and result else {"output": result}
        return [make_output(str(name), value) for name, value in named.items()]

    def encode_example(self) -> Any:
        """Return an example input in JSON's types, as clients send it; None without one."""
        if not self.examples:
            return None
        return values.encode_value(self.examples[0]["input"], plain=True)

    def encode_result(self, result: Any) -> Any:
        """Return a result in JSON's types, arrays as nested lists."""
        return values.encode_value(result, plain=True)

    def describe(self) -> dict[str, Any]:
        """Return the model's metadata in the Open Inference Protocol."""
        example = self.examples[0] if self.examples else {"input": {}, "output": None}
        known: dict[str, Any] = {}
        if self.examples:
            known = self.convert_input(example["input"])
        inputs = []
        for name, about in self.inputs.items():
            for key, datatype, shape in _describe_input(name, about, known.get(name)):
                inputs.append({"name": key, "datatype": datatype, "shape": shape})
        outputs = []
        for output in self.list_outputs(example["output"]):
            datatype, shape = describe_array(output.array)
            outputs.append({"name": output.name, "datatype": datatype, "shape": shape})
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": "danlu_python",
            "inputs": inputs,
            "outputs": outputs,
        }


def _read_tensor(key: str, tensor: InputTensor, about: Mapping[str, Any]) -> Any:
    """Return the value of a parameter for a tensor; the type is checked later."""
    kind, array = about["type"], tensor.array
    if kind in values.SINGLE and array.size != 1:
        raise values.InvalidInputError(f"{key} must have one element, not {array.size}")
    if array.dtype.kind != "O":
        if kind in values.SINGLE:
            return array.reshape(-1)[0].item()
        return array.tolist() if kind == "any" else array
    if kind == "bytes":
        return array.reshape(-1)[0]
    # An object has no other form than JSON; any other value is JSON only if the request says so.
    if tensor.is_json or kind == "object":
        found = [values.decode_json(item) for item in array.reshape(-1)]
        return found[0] if len(found) == 1 else found
    elements = _read_elements(key, tensor)
    if kind in _ARRAYS:
        return values.make_array(elements.reshape(-1).tolist(), "str", key).reshape(array.shape)
    if kind in values.SINGLE:
        return elements.reshape(-1)[0]
    return elements.tolist()


def _read_elements(key: str, tensor: InputTensor) -> Any:
    """Return an array whose ``BYTES`` are texts."""
    if tensor.array.dtype.kind != "O":
        return tensor.array
    texts = np.empty(tensor.array.size, object)
    try:
        texts[:] = [item.decode() for item in tensor.array.reshape(-1)]
    except UnicodeDecodeError as error:
        raise values.InvalidInputError(f"{key} is not UTF-8: {error}") from error
    return texts.reshape(tensor.array.shape)


def _describe_input(
    name: str, about: Mapping[str, Any], example: Any
) -> list[tuple[str, str, list[int]]]:
    """Return name, datatype and shape of a parameter's tensors: as declared, else of the example.

    A frame, or an object of known columns, has a tensor for each.
    """
    scalars = {"integer": "INT64", "number": "FP64", "boolean": "BOOL"}
    if about["type"] in scalars:
        return [(name, scalars[about["type"]], [1])]
    if about["type"] in ("frame", "object") and example is not None and about.get("columns"):
        return [_describe_column(key, example[key]) for key in about["columns"] if key in example]
    if about["type"] == "frame" and example is not None:
        return [_describe_column(str(key), example[key]) for key in example.columns]
    if about["type"] in ("array", "tensor", "list") and example is not None:
        try:
            array = values.make_array(example, None, name) if isinstance(example, list) else example
        except values.InvalidInputError:  # not of one type or shape
            return [(name, "BYTES", [1])]
        datatype, shape = describe_array(array)
        if about.get("shape"):
            shape = [-1 if length is None else length for length in about["shape"]]
        return [(name, datatype, shape)]
    return [(name, "BYTES", [1])]


def _describe_column(name: str, column: Any) -> tuple[str, str, list[int]]:
    return name, *describe_array(column if isinstance(column, np.ndarray) else column.to_numpy())


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
