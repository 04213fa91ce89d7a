r"""A safe encoding for values: plain data, arrays, tensors and data frames, but never code.

Replicas write it (:func:`encode`) and the submitter reads it (:func:`decode`), so that nothing a
replica returns is unpickled in the submitter's process. Both sides use this module. numpy, torch
and pandas are imported if a value requires them; nothing that a value names is imported or called.

The format, version 1::

    b"DANLU-VALUE 1\n" | length of the tree, 8 bytes, big-endian | tree | blobs

The tree is JSON in UTF-8, including surrogates. A node is null, a Boolean, a number, a string, an
array (a list) or an object ``{"t": KIND, …}``; the keys of :data:`_READERS` are the kinds. The
blobs are the contents of bytes, arrays and tensors, in the order of their nodes, which contain
their sizes; no bytes may follow. An object that a value contains twice is encoded twice, and
tensors are read without their gradients' graph.
"""

import collections
import datetime
import importlib
import json
import math
import pathlib
import re
import sys
from typing import Any

MAGIC = b"DANLU-VALUE 1\n"

#: The maximum size and depth of the tree, the maximum number of its nodes, and the maximum size of
#: an integer in bits: Python refuses texts of integers with more than 4,300 digits.
MAX_TREE, MAX_DEPTH, MAX_NODES, MAX_BITS = 64 << 20, 64, 1 << 20, 10_000

_SCALARS = {type(None), bool, float, str}
_NUMBERS = {*_SCALARS, int}

#: The maximum length of a path or a time.
_MAX_TEXT = 10_000
_DTYPE = re.compile(
    r"[<>|=]?(b1|[iu][1248]|f(2|4|8|12|16)|c(8|16|24|32)|[SU][1-9]\d{0,8}"
    r"|[mM]8(\[\d{0,9}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)"
)
#: Data types of ml_dtypes, which extends numpy for JAX and TensorFlow.
_SMALL_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
_TORCH_DTYPE = re.compile(
    r"bool|u?int(8|16|32|64)|b?float16|float(32|64)|complex(32|64|128)|float8_e(4m3fn|5m2)"
)
#: pandas' extension data types for numbers and text ("str" is the default for text in pandas 3).
_COLUMN_DTYPE = re.compile(r"boolean|string|str|U?Int(8|16|32|64)|Float(32|64)")


class NotPlain(Exception):
    """A value that cannot be encoded: which part, and why."""

    def __init__(self, place: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{place} {reason}")
        self.place = place
        self.reason = reason
        self.hint = hint


class DecodeError(ValueError):
    """Data that is not a valid encoded value, or requires a library that is not installed."""


class Encoded:
    """An encoded value as a list of buffers, which share memory with the value."""

    def __init__(self, parts: "list[Any]") -> None:
        self.parts = parts
        self.size = sum(memoryview(part).nbytes for part in parts)

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


def is_encoded(data: "bytes | memoryview") -> bool:
    """Return whether ``data`` starts with the signature of this encoding."""
    return bytes(data[: len(MAGIC)]) == MAGIC


def encode(value: object, name: str = "value", *, convert: bool = True) -> Encoded:
    """Encode ``value``, called ``name`` in errors; raises :class:`NotPlain`.

    With ``convert`` arrays of TensorFlow, JAX, Paddle and MXNet are converted to numpy arrays.
    """
    encoder = _Encoder(name, convert)
    try:
        text = json.dumps(encoder.node(value), separators=(",", ":"), ensure_ascii=False)
    except RecursionError:
        raise NotPlain(name, "is nested too deeply") from None
    tree = text.encode("utf-8", "surrogatepass")
    if len(tree) > MAX_TREE:
        raise NotPlain(name, "has too many parts", "convert its numbers to arrays")
    return Encoded([MAGIC, len(tree).to_bytes(8, "big"), tree, *encoder.blobs])


def decode(data: "bytes | memoryview", *, views: bool = False) -> Any:
    """Decode a value; raises :class:`DecodeError` and nothing else, for any ``data``.

    With ``views`` bytes are decoded as views of ``data`` instead of copies.
    """
    view = memoryview(data)
    head = len(MAGIC) + 8
    if not is_encoded(view) or len(view) < head:
        raise DecodeError("the signature of an encoded value is missing")
    length = int.from_bytes(view[len(MAGIC) : head], "big")
    if length > MAX_TREE or length > len(view) - head:
        raise DecodeError("the tree is too large or truncated")
    try:
        tree = json.loads(bytes(view[head : head + length]).decode("utf-8", "surrogatepass"))
        decoder = _Decoder(view[head + length :], views)
        value = decoder.node(tree)
    except DecodeError:
        raise
    except ImportError as error:
        raise DecodeError(f"{error.name} is required but not installed") from error
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise DecodeError(f"{type(error).__name__}: {error}") from error
    if decoder.remaining:
        raise DecodeError(f"unexpected {decoder.remaining} bytes at the end")
    return value


# -- encoding -------------------------------------------------------------------------------------


class _Encoder:
    def __init__(self, name: str, convert: bool) -> None:
        self.blobs = []  # type: list[Any]
        self._convert = convert
        self._path = [name]
        self._count = 0

    def node(self, value: Any) -> Any:
        kind = type(value)
        if kind in _SCALARS:
            return value
        if kind is int:
            if value.bit_length() > MAX_BITS:
                raise self.not_plain("is an integer with too many digits")
            return value
        if len(self._path) > MAX_DEPTH:
            raise self.not_plain("contains itself, or is nested too deeply")
        self._count += 1
        if self._count > MAX_NODES:
            raise self.not_plain("has too many parts", "convert its numbers to arrays")
        writer = _WRITERS.get(kind)
        if writer is not None:
            return writer(self, value)
        node = self._library_node(value, kind)
        if node is None:
            raise self.not_plain(
                f"is a {kind.__module__}.{kind.__qualname__}", _suggest_alternative(value)
            )
        return node

    def not_plain(self, reason: str, hint: str = "") -> NotPlain:
        return NotPlain("".join(self._path)[:400], reason, hint)

    def blob(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if size:
            self.blobs.append(data)
        return size

    def at(self, label: str, value: Any) -> Any:
        """Return the node of a part, with its label in errors."""
        self._path.append(label)
        try:
            return self.node(value)
        finally:
            self._path.pop()

    def items(self, values: "list[Any] | tuple[Any, ...]") -> "list[Any]":
        if _are_scalars(values):
            return list(values)
        return [self.at(f"[{number}]", value) for number, value in enumerate(values)]

    def mapping(self, value: "dict[Any, Any]") -> "dict[str, Any]":
        keys = self.items(list(value))
        values = list(value.values())
        if _are_scalars(values):
            return {"k": keys, "v": values}
        nodes = [self.at(f"[{_short_repr(key)}]", item) for key, item in value.items()]
        return {"k": keys, "v": nodes}

    # -- libraries --------------------------------------------------------------------------------

    def _library_node(self, value: Any, kind: type) -> Any:
        library = str(kind.__module__).partition(".")[0]
        if library == "numpy":
            return self._numpy_node(value, kind)
        if library == "torch":
            return self._torch_node(value, kind)
        if library == "pandas":
            return self._pandas_node(value, kind)
        if self._convert and library in _CONVERSIONS:
            array = _CONVERSIONS[library](value)
            return None if array is None else self._numpy_node(array, type(array))
        return None

    def _numpy_node(self, value: Any, kind: type) -> Any:
        numpy = sys.modules["numpy"]
        if kind is numpy.ndarray:
            dtype = self._dtype_name(value.dtype)
            flat = numpy.ascontiguousarray(value).reshape(-1)
            return {"t": "array", "d": dtype, "s": list(value.shape), "b": self._array_blob(flat)}
        if issubclass(kind, numpy.generic):
            if kind is numpy.void or kind is numpy.object_:
                return None
            flat = numpy.asarray(value).reshape(-1)
            return {"t": "scalar", "d": self._dtype_name(value.dtype), "b": self._array_blob(flat)}
        return None

    def _array_blob(self, flat: Any) -> int:
        return self.blob(flat.view("u1").data if flat.size else b"")

    def _dtype_name(self, dtype: Any) -> str:
        text = str(dtype.str)
        if _DTYPE.fullmatch(text):
            return text
        if dtype.name in _SMALL_DTYPES:
            return str(dtype.name)
        hint = "convert it to a list with .tolist()" if dtype.kind == "O" else ""
        raise self.not_plain(f"is an array of {dtype}", hint)

    def _torch_node(self, value: Any, kind: type) -> Any:
        torch = sys.modules["torch"]
        if kind is not torch.Tensor:
            return None
        dtype = str(value.dtype).rpartition(".")[2]
        if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
            raise self.not_plain(f"is a tensor of layout {value.layout}", "call .to_dense()")
        if not _TORCH_DTYPE.fullmatch(dtype):
            raise self.not_plain(f"is a tensor of {dtype}")
        size = self.blob(_tensor_bytes(torch, value))
        return {"t": "tensor", "d": dtype, "s": list(value.shape), "b": size}

    # -- data frames ------------------------------------------------------------------------------

    def _pandas_node(self, value: Any, kind: type) -> Any:
        pandas = sys.modules["pandas"]
        if kind is pandas.DataFrame:
            columns = [
                self._labelled_column_node(label, value.iloc[:, number])
                for number, label in enumerate(value.columns)
            ]
            index, header = self._index_node(value.index), self._index_node(value.columns)
            return {"t": "frame", "c": columns, "i": index, "h": header}
        if kind is pandas.Series:
            column, index = self._column_node(value), self._index_node(value.index)
            return {"t": "series", "c": column, "i": index, "n": self.items([value.name])}
        return None

    def _labelled_column_node(self, label: Any, column: Any) -> Any:
        self._path.append(f"[{_short_repr(label)}]")
        try:
            return self._column_node(column)
        finally:
            self._path.pop()

    def _index_node(self, index: Any) -> Any:
        pandas = sys.modules["pandas"]
        if isinstance(index, pandas.MultiIndex):
            raise self.not_plain("has an index of several levels", "call .reset_index()")
        names = self.items([index.name])
        if isinstance(index, pandas.RangeIndex):
            return {"k": "range", "r": [index.start, index.stop, index.step], "n": names}
        return {"k": "flat", "c": self._column_node(index), "n": names}

    def _column_node(self, column: Any) -> Any:
        """Return the node of the values of a series or an index."""
        pandas, numpy = sys.modules["pandas"], sys.modules["numpy"]
        dtype = column.dtype
        if isinstance(dtype, numpy.dtype):
            return self._numpy_column_node(column.to_numpy())
        name = str(dtype)
        if not _COLUMN_DTYPE.fullmatch(name):
            raise self.not_plain(f"is a column of {dtype}", "convert it to numbers or text")
        known = [None if item is pandas.NA or item != item else item for item in column.array]
        # Python scalars instead of numpy's: the data type is stored separately.
        values = [getattr(item, "item", lambda item=item: item)() for item in known]
        return {"k": "extended", "d": name, "v": self.items(values)}

    def _numpy_column_node(self, values: Any) -> Any:
        if values.dtype.kind == "O":
            return {"k": "objects", "v": self.items(values.tolist())}
        return {"k": "array", "a": self._numpy_node(values, type(values))}


def _are_scalars(values: "list[Any] | tuple[Any, ...]") -> bool:
    """Return whether every value is its own node."""
    kinds = set(map(type, values))
    if not kinds <= _NUMBERS:
        return False
    return all(value.bit_length() <= MAX_BITS for value in values if type(value) is int)


def _short_repr(key: object) -> str:
    return repr(key)[:80]


def _suggest_alternative(value: Any) -> str:
    if hasattr(value, "_asdict"):
        return "return its ._asdict()"
    if hasattr(value, "__dataclass_fields__"):
        return "return dataclasses.asdict(…)"
    if callable(getattr(value, "state_dict", None)):
        return "return its .state_dict()"
    return ""


def _tensor_bytes(torch: Any, tensor: Any) -> Any:
    dense = tensor.detach().cpu()
    for resolve in ("resolve_conj", "resolve_neg"):
        if hasattr(dense, resolve):
            dense = getattr(dense, resolve)()
    flat = dense.contiguous().reshape(-1)
    if not flat.numel():
        return b""
    flat = flat.view(torch.uint8)
    try:
        return flat.numpy().data
    except RuntimeError:  # torch was built or runs without numpy
        return bytes(flat.tolist())


def _jax_to_numpy(value: Any) -> Any:
    jax, numpy = sys.modules.get("jax"), sys.modules.get("numpy")
    if jax is None or numpy is None or not isinstance(value, jax.Array):
        return None
    return numpy.asarray(value)


def _convert_by_method(name: str) -> Any:
    def convert(value: Any) -> Any:
        method = getattr(value, name, None)
        array = method() if callable(method) and hasattr(value, "shape") else None
        numpy = sys.modules.get("numpy")
        fits = numpy is not None and isinstance(array, (numpy.ndarray, numpy.generic))
        return array if fits else None

    return convert


_CONVERSIONS = {
    "jax": _jax_to_numpy,
    "jaxlib": _jax_to_numpy,
    "tensorflow": _convert_by_method("numpy"),
    "paddle": _convert_by_method("numpy"),
    "mxnet": _convert_by_method("asnumpy"),
}


def _write_mapping(kind: str) -> Any:
    def write(encoder: _Encoder, value: Any) -> Any:
        return {"t": kind, **encoder.mapping(value)}

    return write


def _write_ordered_dict(encoder: _Encoder, value: Any) -> Any:
    node = {"t": "ordered", **encoder.mapping(value)}
    # torch's load_state_dict() reads the versions of modules from it.
    metadata = getattr(value, "_metadata", None)
    if metadata is not None:
        node["m"] = encoder.at("._metadata", metadata)
    return node


def _write_text(kind: str, to_text: Any) -> Any:
    def write(encoder: _Encoder, value: Any) -> Any:
        text = to_text(value)
        if len(text) > _MAX_TEXT:
            raise encoder.not_plain("is too long")
        return {"t": kind, "v": text}

    return write


def _write_time(kind: str) -> Any:
    def write(encoder: _Encoder, value: Any) -> Any:
        zone = value.tzinfo
        if zone is not None and type(zone) is not datetime.timezone:
            raise encoder.not_plain(f"is in the time zone {zone}", "convert it to UTC")
        return {"t": kind, "v": value.isoformat()}

    return write


def _write_parts(encoder: _Encoder, value: Encoded) -> Any:
    for part in value.parts:
        encoder.blob(part)
    return {"t": "bytes", "b": value.size}


_WRITERS = {
    list: lambda encoder, value: encoder.items(value),
    tuple: lambda encoder, value: {"t": "tuple", "i": encoder.items(value)},
    set: lambda encoder, value: {"t": "set", "i": encoder.items(list(value))},
    frozenset: lambda encoder, value: {"t": "frozenset", "i": encoder.items(list(value))},
    dict: lambda encoder, value: {"t": "dict", **encoder.mapping(value)},
    collections.OrderedDict: _write_ordered_dict,
    bytes: lambda encoder, value: {"t": "bytes", "b": encoder.blob(value)},
    Encoded: _write_parts,
    datetime.datetime: _write_time("datetime"),
    datetime.date: _write_text("date", lambda value: value.isoformat()),
    datetime.time: _write_time("time"),
    datetime.timedelta: lambda encoder, value: {
        "t": "delta",
        "v": [value.days, value.seconds, value.microseconds],
    },
    pathlib.PosixPath: _write_text("PosixPath", str),
}  # type: dict[type, Any]


# -- decoding -------------------------------------------------------------------------------------

#: For more keys than this, check that they do not all have the same few hashes.
_MAX_UNCHECKED_KEYS = 1000


class _Decoder:
    def __init__(self, blobs: memoryview, views: bool) -> None:
        self._blobs = blobs
        self._views = views
        self._offset = 0
        self._depth = 0

    @property
    def remaining(self) -> int:
        return len(self._blobs) - self._offset

    def node(self, node: Any) -> Any:
        kind = type(node)
        if kind in _NUMBERS:
            return node
        self._depth += 1
        if self._depth > MAX_DEPTH + 5:
            raise DecodeError("nested too deeply")
        try:
            if kind is list:
                return self.items(node)
            return _READERS[node["t"]](self, node)
        finally:
            self._depth -= 1

    def items(self, nodes: Any) -> "list[Any]":
        _require(nodes, type(nodes) is list)
        if set(map(type, nodes)) <= _NUMBERS:
            return nodes  # type: ignore[no-any-return]
        return [self.node(node) for node in nodes]

    def blob(self, size: Any) -> memoryview:
        _require(size, type(size) is int and 0 <= size <= self.remaining)
        self._offset += size
        return self._blobs[self._offset - size : self._offset]

    def keys(self, nodes: Any) -> "list[Any]":
        found = self.items(nodes)
        if len(found) > _MAX_UNCHECKED_KEYS and set(map(type, found)) != {str}:
            # Hash flooding: a dict of numbers with equal hashes would take hours to build.
            _require(found, 2 * len(set(map(hash, found))) > len(found))
        return found

    def mapping(self, value: Any, node: "dict[str, Any]") -> Any:
        keys, nodes = self.keys(node["k"]), node["v"]
        _require(nodes, type(nodes) is list and len(nodes) == len(keys))
        for key, item in zip(keys, self.items(nodes)):  # noqa: B905
            value[key] = item
        return value

    # -- arrays -----------------------------------------------------------------------------------

    def array(self, node: "dict[str, Any]", shape: "list[int]") -> Any:
        numpy = importlib.import_module("numpy")
        dtype = _numpy_dtype(node["d"])
        for length in shape:
            _require(length, type(length) is int and 0 <= length < 1 << 63)
        _require(shape, len(shape) <= 32)
        # A copy: data frames must be writable, and the buffer of the file may go away.
        data = bytearray(self.blob(node["b"]))
        _require(data, len(data) == math.prod(shape) * dtype.itemsize)
        found = numpy.frombuffer(data, dtype).reshape(shape)
        if dtype.kind == "b":
            _require(found, not found.size or found.view("u1").max() <= 1)
        if dtype.kind == "U":
            codes = found.reshape(-1).view(dtype.byteorder.replace("|", "=") + "u4")
            _require(found, not codes.size or codes.max() < 0x110000)
        return found

    def tensor(self, node: "dict[str, Any]") -> Any:
        torch = importlib.import_module("torch")
        shape = node["s"]
        _require(shape, type(shape) is list and len(shape) <= 64)
        for length in shape:
            _require(length, type(length) is int and 0 <= length < 1 << 63)
        dtype = getattr(torch, _require(node["d"], _TORCH_DTYPE.fullmatch(node["d"])))
        data = bytearray(self.blob(node["b"]))
        _require(data, len(data) == math.prod(shape) * torch.empty(0, dtype=dtype).element_size())
        if dtype is torch.bool:
            _require(data, not data or max(data) <= 1)
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return flat.reshape(shape)

    # -- data frames ------------------------------------------------------------------------------

    def frame(self, node: "dict[str, Any]") -> Any:
        pandas = importlib.import_module("pandas")
        columns, index, header = _exact_fields(node, "c", "i", "h")
        arrays = [self.column(column) for column in _require(columns, type(columns) is list)]
        rows, labels = self.index(index), self.index(header)
        _require(arrays, len(labels) == len(arrays))
        _require(arrays, all(len(array) == len(rows) for array in arrays))
        made = pandas.DataFrame(dict(enumerate(arrays)), index=rows)
        made.columns = labels
        return made

    def index(self, node: "dict[str, Any]") -> Any:
        pandas = importlib.import_module("pandas")
        if node["k"] == "range":
            parts, names = _exact_fields(node, "r", "n", known="k")
            start, stop, step = (_require(part, type(part) is int) for part in parts)
            return pandas.RangeIndex(start, stop, step, name=self.items(names)[0])
        _require(node, node["k"] == "flat")
        column, names = _exact_fields(node, "c", "n", known="k")
        return pandas.Index(self.column(column), name=self.items(names)[0])

    def column(self, node: "dict[str, Any]") -> Any:
        pandas = importlib.import_module("pandas")
        kind = node["k"]
        if kind == "array":
            (array,) = _exact_fields(node, "a", known="k")
            dtype, shape, _ = _exact_fields(_require(array, array["t"] == "array"), "d", "s", "b")
            return self.array(array, _require(shape, type(shape) is list and len(shape) == 1))
        if kind == "objects":
            (values,) = _exact_fields(node, "v", known="k")
            items = self.items(values)
            array = importlib.import_module("numpy").empty(len(items), dtype=object)
            array[:] = items
            return array
        _require(node, kind == "extended")
        dtype, values = _exact_fields(node, "d", "v", known="k")
        _require(dtype, _COLUMN_DTYPE.fullmatch(dtype))
        return pandas.array(self.items(values), dtype=dtype)


def _require(value: Any, is_valid: object) -> Any:
    """Return ``value`` if ``is_valid``, else raise :class:`DecodeError`."""
    if not is_valid:
        raise DecodeError(f"invalid {type(value).__name__} in the tree")
    return value


def _exact_fields(node: "dict[str, Any]", *names: str, known: str = "t") -> "list[Any]":
    """Return the fields of a node; it must have these, its kind and no others."""
    _require(node, type(node) is dict and node.keys() == {known, *names})
    return [node[name] for name in names]


def _numpy_dtype(text: Any) -> Any:
    numpy = importlib.import_module("numpy")
    if text in _SMALL_DTYPES:
        return numpy.dtype(getattr(importlib.import_module("ml_dtypes"), text))
    return numpy.dtype(_require(text, type(text) is str and _DTYPE.fullmatch(text)))


def _read_text(make: Any) -> Any:
    """Return a reader for nodes with the single field ``v``, a text."""

    def read(decoder: _Decoder, node: "dict[str, Any]") -> Any:
        (text,) = _exact_fields(node, "v")
        return make(_require(text, type(text) is str and len(text) <= _MAX_TEXT))

    return read


def _read_items(make: Any) -> Any:
    return lambda decoder, node: make(decoder.items(_exact_fields(node, "i")[0]))


def _read_keys(make: Any) -> Any:
    return lambda decoder, node: make(decoder.keys(_exact_fields(node, "i")[0]))


def _read_dict(decoder: _Decoder, node: "dict[str, Any]") -> Any:
    _exact_fields(node, "k", "v")
    return decoder.mapping({}, node)


def _read_ordered_dict(decoder: _Decoder, node: "dict[str, Any]") -> Any:
    _exact_fields(node, "k", "v", *(["m"] if "m" in node else []))
    value = decoder.mapping(collections.OrderedDict(), node)
    if "m" in node:
        value._metadata = decoder.node(node["m"])
    return value


def _read_bytes(decoder: _Decoder, node: "dict[str, Any]") -> Any:
    data = decoder.blob(_exact_fields(node, "b")[0])
    return data if decoder._views else bytes(data)


def _read_delta(decoder: _Decoder, node: "dict[str, Any]") -> Any:
    (parts,) = _exact_fields(node, "v")
    _require(parts, type(parts) is list and [type(part) for part in parts] == [int] * 3)
    return datetime.timedelta(*parts)


def _read_scalar(decoder: _Decoder, node: "dict[str, Any]") -> Any:
    _exact_fields(node, "d", "b")
    return decoder.array(node, [1])[0]


def _read_array(decoder: _Decoder, node: "dict[str, Any]") -> Any:
    shape = _exact_fields(node, "d", "s", "b")[1]
    return decoder.array(node, _require(shape, type(shape) is list))


def _read_tensor(decoder: _Decoder, node: "dict[str, Any]") -> Any:
    _exact_fields(node, "d", "s", "b")
    return decoder.tensor(node)


def _read_series(decoder: _Decoder, node: "dict[str, Any]") -> Any:
    pandas = importlib.import_module("pandas")
    column, index, name = _exact_fields(node, "c", "i", "n")
    values, rows = decoder.column(column), decoder.index(index)
    return pandas.Series(values, index=rows, name=decoder.items(name)[0])


#: The reader for each kind of object.
_READERS = {
    "dict": _read_dict,
    "ordered": _read_ordered_dict,
    "tuple": _read_items(tuple),
    "set": _read_keys(set),
    "frozenset": _read_keys(frozenset),
    "bytes": _read_bytes,
    "datetime": _read_text(lambda text: datetime.datetime.fromisoformat(text)),
    "date": _read_text(lambda text: datetime.date.fromisoformat(text)),
    "time": _read_text(lambda text: datetime.time.fromisoformat(text)),
    "delta": _read_delta,
    "PosixPath": _read_text(pathlib.Path),
    "array": _read_array,
    "scalar": _read_scalar,
    "tensor": _read_tensor,
    "frame": lambda decoder, node: decoder.frame(node),
    "series": _read_series,
}  # type: dict[str, Any]
