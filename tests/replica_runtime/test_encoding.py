"""The safe encoding: round trips, errors for unsupported values, and hostile bytes."""

from __future__ import annotations

import collections
import datetime
import hashlib
import io
import json
import math
import pathlib
import pickle
import random
import threading
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.replica_runtime import encoding
from danlu.replica_runtime.encoding import MAGIC, DecodeError, NotPlain, decode, encode


def encode_and_decode(value: Any) -> Any:
    return decode(bytes(encode(value)))


# -- supported values ----------------------------------------------------------------------------

UTC = datetime.timezone.utc  # noqa: UP017

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.datetimes()
    | st.dates()
    | st.times()
    | st.timedeltas()
)
KEYS = SCALARS | st.tuples(SCALARS, SCALARS) | st.frozensets(st.integers())
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(KEYS, inner)
        | st.tuples(inner, inner)
        | st.sets(KEYS)
        | st.builds(collections.OrderedDict, st.dictionaries(st.text(), inner))
    ),
    max_leaves=30,
)


@given(VALUES)
@settings(deadline=None)
def test_plain_values_round_trip(value: Any) -> None:
    result = encode_and_decode(value)
    assert (type(result), result) == (type(value), value)


@pytest.mark.parametrize(
    "value",
    [
        1 << 200,
        -(1 << 63) - 1,
        "half \ud800",
        datetime.datetime(2026, 1, 2, tzinfo=UTC),
        pathlib.Path("a/b"),
        {(1, "x"): [None, True], frozenset({2}): {3}},
    ],
    ids=repr,
)
def test_standard_library_types_round_trip(value: Any) -> None:
    result = encode_and_decode(value)
    assert (type(result), result) == (type(value), value)


def test_nan_and_infinity_round_trip() -> None:
    assert math.isnan(encode_and_decode(math.nan))
    assert encode_and_decode([math.inf, -math.inf, -0.0]) == [math.inf, -math.inf, 0.0]


def test_object_that_occurs_twice_is_encoded_twice() -> None:
    array = numpy.arange(3)
    result = encode_and_decode({"a": array, "b": [array]})
    numpy.testing.assert_array_equal(result["a"], result["b"][0])
    assert result["a"] is not result["b"][0]


ARRAYS = [
    numpy.arange(6).reshape(2, 3),
    numpy.arange(6, dtype=">i4")[::2],
    numpy.asfortranarray(numpy.eye(3)),
    numpy.array(3.5, dtype="float16"),
    numpy.zeros((0, 3)),
    numpy.array([True, False]),
    numpy.array(["a", "bcd"]),
    numpy.array([b"xy"]),
    numpy.array(["2026-01-02", "NaT"], dtype="M8[D]"),
    numpy.array([1 + 2j]),
    numpy.float32(0.5),
    numpy.int64(7),
    numpy.str_("text"),
    numpy.bool_(True),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{type(array).__name__} {array.dtype}")
def test_numpy_arrays_and_scalars_round_trip(array: Any) -> None:
    result = encode_and_decode([array])[0]
    assert (type(result), result.dtype, result.shape) == (type(array), array.dtype, array.shape)
    numpy.testing.assert_array_equal(result, array)
    assert type(array) is not numpy.ndarray or result.flags.writeable


def test_encoding_does_not_copy_array_data() -> None:
    array = numpy.zeros(1000)
    parts = encode(array).parts
    array[0] = 1
    assert bytes(parts[-1][:8]) == array[:1].tobytes()


# -- unsupported values --------------------------------------------------------------------------


class UnsupportedClass:
    def __init__(self) -> None:
        self.state = 1


class NamedPoint(collections.namedtuple("NamedPoint", "x")):
    pass


@pytest.mark.parametrize(
    ("value", "message", "hint"),
    [
        (
            {"layers": [UnsupportedClass()]},
            "model['layers'][0] is a tests.replica_runtime.test_encoding.UnsupportedClass",
            "",
        ),
        (
            NamedPoint(1),
            "model is a tests.replica_runtime.test_encoding.NamedPoint",
            "return its ._asdict()",
        ),
        (threading.Lock(), "model is a _thread.lock", ""),
        (print, "model is a builtins.builtin_function_or_method", ""),
        (UnsupportedClass, "model is a builtins.type", ""),
        (
            numpy.array([object()]),
            "model is an array of object",
            "convert it to a list with .tolist()",
        ),
        (numpy.zeros(1, "i4,i4"), "model is an array of [('f0', '<i4'), ('f1', '<i4')]", ""),
        (numpy.ma.array([1]), "model is a numpy.ma.MaskedArray", ""),
        (collections.Counter("a"), "model is a collections.Counter", ""),
        ([1 << (1 << 20)], "model[0] is an integer with too many digits", ""),
    ],
)
def test_unsupported_value_is_named_by_path_and_type(value: Any, message: str, hint: str) -> None:
    with pytest.raises(NotPlain) as caught:
        encode(value, "model")
    assert (str(caught.value), caught.value.hint) == (message, hint)


def test_too_deep_cyclic_and_too_many_values_are_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    inner: list[Any] = []
    inner.append((inner,))
    for value in (deep, inner):
        with pytest.raises(NotPlain, match="contains itself, or is nested too deeply"):
            encode(value)
    monkeypatch.setattr(encoding, "MAX_NODES", 10_000)
    doubled: Any = []
    for _ in range(50):
        doubled = [doubled, doubled]
    with pytest.raises(NotPlain, match="too many parts"):
        encode(doubled)


# -- strange bytes --------------------------------------------------------------------------------


def encode_frame(tree: Any, blobs: bytes = b"") -> bytes:
    text = (tree if isinstance(tree, str) else json.dumps(tree)).encode()
    return MAGIC + len(text).to_bytes(8, "big") + text + blobs


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MAGIC,
        MAGIC + b"\xff" * 8,
        pickle.dumps([1]),
        encode_frame("{"),
        encode_frame("9" * 5000),
        encode_frame("[" * 10_000 + "]" * 10_000),
        encode_frame({"t": "os.system"}),
        encode_frame({"no": 1}),
        encode_frame({"t": ["list"]}),
        encode_frame({"t": "tuple"}),
        encode_frame({"t": "tuple", "i": [], "more": 1}),
        encode_frame({"t": "ref", "n": 0}),
        encode_frame({"t": "set", "i": [[]]}),
        encode_frame({"t": "dict", "k": [{"t": "dict", "k": [], "v": []}], "v": [1]}),
        encode_frame({"t": "dict", "k": [1, 2], "v": [1]}),
        encode_frame({"t": "delta", "v": [10**12, 0, 0]}),
        encode_frame({"t": "datetime", "v": "2026-01-02" * 3}),
        encode_frame({"t": "bytes", "b": 4}, b"abc"),
        encode_frame({"t": "bytes", "b": 2}, b"abc"),
        encode_frame({"t": "bytes", "b": -1}),
        encode_frame({"t": "bytes", "b": True}, b"a"),
        encode_frame({"t": "array", "d": "O", "s": [1], "b": 8}, bytes(8)),
        encode_frame({"t": "array", "d": "<i4", "s": [1 << 62, 4], "b": 0}),
        encode_frame({"t": "array", "d": "<i4", "s": [-1], "b": 4}, bytes(4)),
        encode_frame({"t": "array", "d": "<i4", "s": [2], "b": 4}, bytes(4)),
        encode_frame({"t": "array", "d": "<i4", "s": [1] * 65, "b": 4}, bytes(4)),
        encode_frame({"t": "array", "d": "|b1", "s": [1], "b": 1}, b"\x07"),
        encode_frame({"t": "array", "d": "<U1", "s": [1], "b": 4}, b"\xff" * 4),
        encode_frame({"t": "array", "d": "i4,O", "s": [1], "b": 12}, bytes(12)),
        encode_frame({"t": "scalar", "d": "<f8", "b": 0}),
    ],
    ids=lambda data: hashlib.sha256(data).hexdigest()[:8],
)
def test_invalid_bytes_are_rejected(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)


def test_hash_flooding_is_rejected() -> None:
    prime = (1 << 61) - 1
    keys = [prime * number for number in range(2000)]
    with pytest.raises(DecodeError):
        decode(encode_frame({"t": "set", "i": keys}))


class UnpicklingAction:
    """Runs something when it is unpickled."""

    sprung: list[str] = []

    def __reduce__(self) -> Any:
        return (UnpicklingAction.sprung.append, ("run",))


@given(st.binary(max_size=200), st.integers(0, 300), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=300)
def test_damaged_bytes_decode_to_plain_values_or_fail(
    noise: bytes, place: int, chance: random.Random
) -> None:
    value = {"a": [1, {"b": (numpy.arange(4), b"xyz", 1 << 80)}], "c": {1, 2.5}, "d": None}
    data = bytearray(bytes(encode(value)))
    for _ in range(chance.randrange(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    data[place % len(data) : place % len(data) + chance.randrange(3)] = noise[: chance.randrange(9)]
    for strange in (bytes(data), MAGIC + noise, encode_frame(noise.decode("latin-1"))):
        try:
            result = decode(strange)
        except DecodeError:
            continue
        encode(result)


NODES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 1 << 65)
    | st.floats()
    | st.sampled_from(["", "<i4", "|b1", "0xff", "UTC", "list", "NaT"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.builds(
            lambda kind, fields: {"t": kind, **fields},
            st.sampled_from([*encoding._READERS, "ref", "?"]),
            st.dictionaries(st.sampled_from("kvibdsnhmflotrczapg"), inner, max_size=4),
        )
    ),
    max_leaves=20,
)


@given(NODES, st.binary(max_size=40))
@settings(deadline=None, max_examples=500)
def test_arbitrary_trees_decode_to_plain_values_or_fail(tree: Any, blobs: bytes) -> None:
    try:
        result = decode(encode_frame(tree, blobs))
    except DecodeError:
        return
    encode(result)


def test_decode_never_unpickles(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("something is unpickled")

    data = bytes(encode({"a": pickle.dumps(UnpicklingAction()), "b": numpy.arange(3)}))
    for name in ("loads", "load", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(numpy, "load", refuse)
    assert decode(data)["b"].tolist() == [0, 1, 2]
    for written_by in (numpy.save, numpy.savez):
        file = io.BytesIO()
        written_by(file, numpy.arange(3))
        with pytest.raises(DecodeError):
            decode(file.getvalue())
    assert UnpicklingAction.sprung == []


@pytest.mark.parametrize("library", ["torch", "pandas", "ml_dtypes"])
def test_missing_library_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {
        "torch": {"t": "tensor", "d": "float32", "s": [0], "b": 0},
        "pandas": {"t": "series", "c": {}, "i": {}, "n": []},
        "ml_dtypes": {"t": "array", "d": "bfloat16", "s": [0], "b": 0},
    }
    monkeypatch.setitem(__import__("sys").modules, library, None)
    with pytest.raises(DecodeError, match=f"{library} is required but not installed"):
        decode(encode_frame(nodes[library]))
