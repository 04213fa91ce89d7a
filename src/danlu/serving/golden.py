"""Compare the outputs of a predictor with recorded ones.

Outputs are JSON as :func:`danlu.serving.predictor_values.encode_value` writes it. They come from
containers and images, so nothing in them is trusted: an invalid array is a difference, never an
exception.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

#: The default of ``--tolerance``.
DEFAULT_TOLERANCE = 1e-6

#: Struct's format characters (little-endian) of NumPy's types.
_FORMATS = {
    "bool": "?", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H", "int32": "i",
    "uint32": "I", "int64": "q", "uint64": "Q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip

_MAX_DEPTH = 100
_MAX_TEXT = 60


class OutputDifference(msgspec.Struct, frozen=True):
    """Two unequal values: where they are (``[0].scores[3]``), and what they are."""

    place: str
    recorded: str
    found: str

    def __str__(self) -> str:
        return f"{self.place}: {self.recorded} recorded, {self.found} now"


class OutputComparison(msgspec.Struct, frozen=True):
    """How two lists of outputs compare.

    ``values`` were compared; ``largest`` is the largest absolute difference of two numbers, at
    ``place``. ``differences`` are those beyond the tolerance, at most the first ten.
    """

    values: int
    largest: float
    place: str
    differences: tuple[OutputDifference, ...]

    @property
    def is_equal(self) -> bool:
        """Whether no value differs by more than the tolerance."""
        return not self.differences


def compare_outputs(
    recorded: Sequence[Any], found: Sequence[Any], *, tolerance: float = DEFAULT_TOLERANCE
) -> OutputComparison:
    """Compare the outputs for all examples.

    Numbers with a fraction may differ by ``tolerance + tolerance * abs(recorded)``, as in
    :func:`numpy.isclose`; two NaN are equal. Everything else must be the same.
    """
    values, largest, place = 0, 0.0, ""
    differences: list[OutputDifference] = []
    for where, old, new in _pair_values("", list(recorded), list(found), 0):
        values += 1
        distance = _measure_distance(old, new)
        if distance is not None and distance > largest:
            largest, place = distance, where
        if not _are_close(old, new, distance, tolerance) and len(differences) < 10:
            differences.append(OutputDifference(where, _format_value(old), _format_value(new)))
    return OutputComparison(values, largest, place, tuple(differences))


def _pair_values(place: str, old: Any, new: Any, depth: int) -> Iterator[tuple[str, Any, Any]]:
    """Yield the single values of two outputs side by side, with their place."""
    if depth > _MAX_DEPTH:
        yield place, old, "nested too deeply"
        return
    if isinstance(old, dict) and isinstance(new, dict) and "$array" in old and "$array" in new:
        yield from _pair_arrays(place, old["$array"], new["$array"])
    elif isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for name in sorted(old):
            yield from _pair_values(f"{place}.{name}", old[name], new[name], depth + 1)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from _pair_values(f"{place}[{number}]", *pair, depth + 1)
    else:
        yield place, old, new


def _pair_arrays(place: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    before, after = _unpack_array(old), _unpack_array(new)
    if before is None or after is None or before[0] != after[0]:
        # Two invalid arrays are no proof of anything.
        found = "another invalid array" if after is None else _describe_array(new, after)
        yield place, _describe_array(old, before), found
        return
    shape = before[0]
    for number, pair in enumerate(zip(before[1], after[1], strict=True)):
        yield f"{place}{_format_index(number, shape)}", *pair


def _unpack_array(about: Any) -> tuple[tuple[int, ...], Sequence[Any]] | None:
    """Return the type, the shape and the numbers of an array; None if it is invalid."""
    try:
        shape = tuple(int(length) for length in about["shape"])
        count = math.prod(shape)
        data = base64.b64decode(about["data"], validate=True)
        code = _FORMATS[about["dtype"]]
        if min(shape, default=0) < 0 or struct.calcsize(f"<{code}") * count != len(data):
            return None
        return shape, struct.unpack(f"<{count}{code}", data)
    except (KeyError, TypeError, ValueError, OverflowError, struct.error, binascii.Error):
        return None


def _format_index(number: int, shape: tuple[int, ...]) -> str:
    index = []
    for length in reversed(shape):
        number, rest = divmod(number, length)
        index.append(str(rest))
    return f"[{', '.join(reversed(index))}]"


def _describe_array(about: Any, unpacked: object) -> str:
    if unpacked is None:
        return "an invalid array"
    return f"an array of {about['dtype']} with the shape {about['shape']}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _measure_distance(old: Any, new: Any) -> float | None:
    """Return the absolute difference of two numbers; None for other values and NaN."""
    if not _is_number(old) or not _is_number(new):
        return None
    try:
        distance = abs(float(old) - float(new)) if old != new else 0.0
    except OverflowError:
        return math.inf
    return None if math.isnan(distance) else distance


def _are_close(old: Any, new: Any, distance: float | None, tolerance: float) -> bool:
    if isinstance(old, float) or isinstance(new, float):
        if distance is None:
            return _is_nan(old) and _is_nan(new)
        return distance == 0 or (
            distance < math.inf and distance <= tolerance * (1 + abs(float(old)))
        )
    return type(old) is type(new) and bool(old == new)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _format_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
