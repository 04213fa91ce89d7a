"""Tensors of the Open Inference Protocol, version 2, as JSON and as binary data.

Sources: kserve/open-inference-protocol, ``inference_rest.md``; its binary tensor data extension
(Triton, KServe): after the JSON, whose length is in a header, follow the tensors' bytes,
little-endian. ``BYTES`` elements are preceded by their length in four bytes.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Sequence
from typing import Any, Dict, List, Optional, Tuple  # noqa: UP035 (msgspec evaluates them, Python 3.9)

import msgspec
import numpy as np

try:
    from .. import predictor_values as values
except ImportError:  # in the image
    import predictor_values as values  # type: ignore[import-not-found,no-redef]

#: NumPy's types of the protocol's, but for ``BYTES``.
DTYPES = {
    name: np.dtype(name.lower().replace("fp", "float"))
    for name in ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
                 "FP16", "FP32", "FP64")
}  # fmt: skip
DATATYPES = {dtype: datatype for datatype, dtype in DTYPES.items()}

_MAX_RANK = 32
_LENGTH = struct.Struct("<I")


class InvalidRequest(Exception):
    """A request that breaks the protocol: the client gets the message with status 400."""


class RequestInput(msgspec.Struct):
    """An input tensor of a request."""

    name: str
    shape: List[int]  # noqa: UP006
    datatype: str
    data: Any = None
    parameters: Optional[Dict[str, Any]] = None  # noqa: UP006, UP045


class RequestOutput(msgspec.Struct):
    """An output tensor that a request asks for."""

    name: str
    parameters: Optional[Dict[str, Any]] = None  # noqa: UP006, UP045


class InferenceRequest(msgspec.Struct):
    """The JSON of a request."""

    inputs: List[RequestInput]  # noqa: UP006
    id: Optional[str] = None  # noqa: UP045
    parameters: Optional[Dict[str, Any]] = None  # noqa: UP006, UP045
    outputs: Optional[List[RequestOutput]] = None  # noqa: UP006, UP045


class InputTensor(msgspec.Struct):
    """The array of an input, for ``BYTES`` of ``bytes``; ``is_json`` if its elements are JSON."""

    array: Any
    is_json: bool = False


def read_json(body: bytes) -> Any:
    """Return the value of JSON whose objects have no key twice.

    Raises :class:`InvalidInputError`. Every key is followed by a colon, so if there are no more
    colons than keys, no key was there twice. Lists of numbers are not looked at for that.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise values.InvalidInputError(f"invalid JSON: {error}") from error
    colons = body.count(b":")
    waiting = [value]
    for item in waiting:
        if not colons:
            break
        if type(item) is dict:
            colons -= len(item)
            waiting += item.values()
        elif type(item) is list:
            waiting += item
    return values.decode_json(body) if colons else value


def decode_request(
    body: bytes, json_length: int | None
) -> tuple[InferenceRequest, dict[str, InputTensor]]:
    """Return a request and its tensors by name.

    ``json_length`` is the value of the header ``Inference-Header-Content-Length``. Raises
    :class:`InvalidRequest`.
    """
    if json_length is not None and not 0 <= json_length <= len(body):
        raise InvalidRequest("Inference-Header-Content-Length is larger than the body")
    end = len(body) if json_length is None else json_length
    try:
        request = msgspec.convert(read_json(body[:end]), InferenceRequest)
    except (msgspec.ValidationError, values.InvalidInputError) as error:
        raise InvalidRequest(f"invalid request: {error}") from error
    tensors: dict[str, InputTensor] = {}
    for item in request.inputs:
        size = (item.parameters or {}).get("binary_data_size")
        if size is None:
            add_input(tensors, item)
            continue
        if type(size) is not int or not 0 <= size <= len(body) - end:
            raise InvalidRequest(f"input {item.name!r}: invalid binary_data_size {size!r}")
        add_input(tensors, item, body[end : end + size])
        end += size
    if end != len(body):
        raise InvalidRequest(f"{len(body) - end} bytes after the last tensor")
    return request, tensors


def add_input(
    tensors: dict[str, InputTensor], item: RequestInput, binary: bytes | None = None
) -> None:
    """Add the tensor of ``item``, from its data or in binary form, under its name.

    Raises :class:`InvalidRequest`.
    """
    if item.name in tensors:
        raise InvalidRequest(f"input {item.name!r} is there twice")
    kind = (item.parameters or {}).get("content_type")
    try:
        count = _count_elements(item.shape)
        array = _decode_data(item) if binary is None else _decode_binary(item, binary)
        if array.size != count:
            raise ValueError(f"{array.size} elements do not have the shape {item.shape}")
        if kind == "base64" and binary is None and item.datatype == "BYTES":
            array = _make_bytes(
                [values.decode_base64(text.decode(), "an element") for text in array]
            )
    except (TypeError, ValueError, OverflowError, values.InvalidInputError) as error:
        raise InvalidRequest(f"input {item.name!r}: {error}") from error
    tensors[item.name] = InputTensor(array.reshape(item.shape), kind == "json")


def _count_elements(shape: list[int]) -> int:
    # NumPy multiplies the lengths other than 0, with the size of an element.
    size = math.prod(filter(None, shape))
    if min(shape, default=0) < 0 or len(shape) > _MAX_RANK or size >= 1 << 59:
        raise ValueError(f"invalid shape {shape}")
    return 0 if 0 in shape else size


def _find_dtype(datatype: str) -> np.dtype[Any]:
    if datatype not in DTYPES:
        names = ", ".join((*DTYPES, "BYTES"))
        raise ValueError(f"datatype {datatype!r} is not of {names}")
    return DTYPES[datatype]


def _decode_data(item: RequestInput) -> Any:
    if not isinstance(item.data, list):
        raise TypeError("data must be a list")
    if item.datatype == "BYTES":
        texts = [_encode_text(text) for text in _flatten_lists(item.data)]
        return _make_bytes(texts)
    dtype = _find_dtype(item.datatype)
    if item.datatype == "FP16":
        raise ValueError("FP16 has no form in JSON: send it as binary data")
    return values.make_array(item.data, dtype, "data")


def _flatten_lists(data: list[Any]) -> list[Any]:
    flat: list[Any] = []
    waiting = [iter(data)]
    while waiting:
        for value in waiting[-1]:
            if isinstance(value, list):
                if len(waiting) == _MAX_RANK:
                    raise ValueError("data is nested too deeply")
                waiting.append(iter(value))
                break
            flat.append(value)
        else:
            waiting.pop()
    return flat


def _encode_text(text: Any) -> bytes:
    if isinstance(text, bytes):  # of gRPC
        return text
    if not isinstance(text, str):
        raise TypeError("elements of BYTES must be strings")
    return text.encode()


def _decode_binary(item: RequestInput, data: bytes) -> Any:
    if item.datatype != "BYTES":
        dtype = _find_dtype(item.datatype).newbyteorder("<")
        count = _count_elements(item.shape)
        if len(data) != count * dtype.itemsize:
            raise ValueError(f"{len(data)} bytes are not {count} elements of {item.datatype}")
        return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))
    elements, place = [], 0
    while place < len(data):
        start = place + _LENGTH.size
        if start <= len(data):
            place = start + _LENGTH.unpack_from(data, start - _LENGTH.size)[0]
        if not start <= place <= len(data):
            raise ValueError("its binary data are cut off")
        elements.append(data[start:place])
    return _make_bytes(elements)


# -- outputs --------------------------------------------------------------------------------------


class OutputTensor(msgspec.Struct):
    """An output: a numeric array, or an array of ``bytes``; ``content_type`` says of what."""

    name: str
    array: Any
    content_type: str = ""

    @property
    def datatype(self) -> str:
        """The protocol's name of the element type."""
        return DATATYPES.get(self.array.dtype, "BYTES")


def make_output(name: str, value: Any) -> OutputTensor:
    """Return the tensor for a value: an array, number, text or bytes, or lists of one of them.

    Another value becomes one element of JSON text. Raises :class:`TypeError` if it has no form.
    """
    if isinstance(value, (bytes, str)):
        value = [value]
    if isinstance(value, list) and value and all(isinstance(item, (bytes, str)) for item in value):
        is_binary = any(isinstance(item, bytes) for item in value)
        return OutputTensor(name, _make_bytes(value), "base64" if is_binary else "")
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufUS":
        array = value
    else:
        value = values.encode_value(value, plain=True)
        try:
            array = values.make_array(value, None, name)
        except values.InvalidInputError:  # not of one type or shape
            return OutputTensor(name, _make_bytes([json.dumps(value)]), "json")
    if array.dtype.kind in "US" and array.ndim:
        return OutputTensor(name, _make_bytes(array.reshape(-1).tolist()).reshape(array.shape))
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype not in DATATYPES:
        raise TypeError(
            f"predict returned an array of {array.dtype}, which the protocol does not have"
        )
    return OutputTensor(name, array.reshape(1) if array.ndim == 0 else array)


def _make_bytes(items: Sequence[bytes | str]) -> Any:
    array = np.empty(len(items), object)
    array[:] = [item.encode() if isinstance(item, str) else item for item in items]
    return array


def select_outputs(outputs: list[OutputTensor], request: InferenceRequest) -> list[OutputTensor]:
    """Return the outputs that the request asks for, by default all.

    Raises :class:`InvalidRequest` if no output has the name.
    """
    if request.outputs is None:
        return outputs
    by_name = {output.name: output for output in outputs}
    for item in request.outputs:
        if item.name not in by_name:
            raise InvalidRequest(f"the model has no output {item.name!r}")
    return [by_name[item.name] for item in request.outputs]


def encode_response(
    about: dict[str, Any], outputs: list[OutputTensor], request: InferenceRequest
) -> tuple[bytes, int | None]:
    """Return the body of a response, and the length of its JSON if binary data follow.

    ``about`` has the model's name and version, ``outputs`` are those that the request asks for.
    """
    is_binary = {
        item.name: item.parameters["binary_data"]
        for item in request.outputs or ()
        if item.parameters and "binary_data" in item.parameters
    }
    default = (request.parameters or {}).get("binary_data_output")
    found, parts = [], []
    for output in outputs:
        name, array, datatype = output.name, output.array, output.datatype
        encoded: dict[str, Any] = {"name": name, "shape": array.shape, "datatype": datatype}
        # FP16 has no form in JSON.
        if is_binary.get(name, default) or datatype == "FP16":
            part = encode_binary(array)
            encoded["parameters"] = {"binary_data_size": len(part)}
            parts.append(part)
        else:
            encoded["data"] = _list_elements(output)
            if output.content_type:
                encoded["parameters"] = {"content_type": output.content_type}
        found.append(encoded)
    answer = {**about, **({"id": request.id} if request.id is not None else {}), "outputs": found}
    head = msgspec.json.encode(answer)
    return (b"".join((head, *parts)), len(head)) if parts else (head, None)


def encode_binary(array: Any) -> bytes:
    """Return an output's array in the binary form."""
    if array.dtype.kind == "O":
        flat = array.reshape(-1)
        return b"".join(part for item in flat for part in (_LENGTH.pack(len(item)), item))
    little: bytes = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return little


def _list_elements(output: OutputTensor) -> list[Any]:
    flat: list[Any] = output.array.reshape(-1).tolist()
    if output.array.dtype.kind != "O":
        return flat
    if output.content_type == "base64":
        return [base64.b64encode(item).decode() for item in flat]
    return [item.decode() for item in flat]


def describe_array(array: Any) -> Tuple[str, List[int]]:  # noqa: UP006
    """Return datatype and shape of an array in the model's metadata: any number of rows."""
    shape = list(array.shape)
    return DATATYPES.get(array.dtype.newbyteorder("="), "BYTES"), [-1, *shape[1:]] if shape else [1]
