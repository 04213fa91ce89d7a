"""The search space of a sweep: parse ``--sweep lr=0.1,0.01 --sweep depth=2:6``."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal

import msgspec

from danlu.errors import UsageError

Point = Mapping[str, str]
"""A value, as text, by the name of each axis."""

_MAX_POINTS = 10_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
_WHOLE = re.compile(r"[+-]?\d+")
_LOG = re.compile(r"log(\d{0,5})")
_SYNTAX_HINT = "write lr=0.1,0.01 or depth=2:6 or width=32:256:32 or rate=1e-4:1e-1:log"


class NumberRange(msgspec.Struct, frozen=True):
    """All numbers from ``low`` to ``high``, both included.

    ``step`` None means any number in between. ``log`` spaces them evenly on a logarithmic scale;
    a grid then has ``count`` of them, or one per decade if it is 0.
    """

    low: Decimal
    high: Decimal
    step: Decimal | None = None
    log: bool = False
    count: int = 0
    whole: bool = False


class SweepAxis(msgspec.Struct, frozen=True):
    """One parameter and its values: ``choices`` as given, or a ``span`` of numbers.

    ``substituted``: its values only replace ``{NAME}``; the program has no option for it.
    """

    name: str
    choices: tuple[str, ...] = ()
    span: NumberRange | None = None
    substituted: bool = False

    def values(self) -> tuple[str, ...]:
        """Return the values for a grid; :class:`UsageError` for a continuous range."""
        return self.choices if self.span is None else _range_values(self.name, self.span)


def parse_axes(texts: Sequence[str]) -> tuple[SweepAxis, ...]:
    """Parse several ``NAME=VALUES``; :class:`UsageError` for a duplicate name."""
    axes = tuple(parse_axis(text) for text in texts)
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            listed = f"{name}=A,B,C"
            raise UsageError(
                f"duplicate parameter {name}", hint=f"give all its values at once: {listed}"
            )
    return axes


def parse_axis(text: str) -> SweepAxis:
    """Parse ``NAME=A,B,C``, ``NAME=LOW:HIGH[:STEP]`` or ``NAME=LOW:HIGH:log[COUNT]``.

    A range includes both ends; the step of integers is 1. Anything else is a list of strings.
    ``{NAME}=…`` is an axis whose values are only substituted. Raises :class:`UsageError`.
    """
    name, equals, values = text.partition("=")
    if not equals:
        raise UsageError(f"invalid sweep {text!r}", hint=_SYNTAX_HINT)
    words = values.split(":")
    if len(words) in (2, 3) and all(_NUMBER.fullmatch(word) for word in words[:2]):
        name, substituted = _parse_name(name, text)
        return SweepAxis(name, span=_parse_range(text, words), substituted=substituted)
    return parse_choices(name, values.split(","))


def parse_choices(name: str, values: Sequence[str]) -> SweepAxis:
    """Return an axis with these values; :class:`UsageError` if one is empty or repeated."""
    text = f"{name}={','.join(values)}"
    name, substituted = _parse_name(name, text)
    if not values or not all(values):
        raise UsageError(f"{text!r} has an empty value", hint=_SYNTAX_HINT)
    if len(set(values)) < len(values):
        raise UsageError(f"{text!r} has a duplicate value", hint=_SYNTAX_HINT)
    return SweepAxis(name, choices=tuple(values), substituted=substituted)


def _parse_name(name: str, text: str) -> tuple[str, bool]:
    substituted = name.startswith("{") and name.endswith("}")
    bare = name[1:-1] if substituted else name
    if not _NAME.fullmatch(bare):
        raise UsageError(f"invalid sweep {text!r}", hint=_SYNTAX_HINT)
    return bare, substituted


def build_grid(axes: Sequence[SweepAxis]) -> tuple[Point, ...]:
    """Return every combination of the axes' values; the last axis varies fastest.

    Raises :class:`UsageError` for more than 10,000 points, and for a continuous range.
    """
    values = [axis.values() for axis in axes]
    count = math.prod(map(len, values))
    if count > _MAX_POINTS:
        raise UsageError(f"too many points: {count}", hint=f"a sweep has at most {_MAX_POINTS}")
    names = [axis.name for axis in axes]
    return tuple(
        dict(zip(names, values_at_point, strict=True))
        for values_at_point in itertools.product(*values)
    )


def _parse_range(text: str, words: Sequence[str]) -> NumberRange:
    low, high = Decimal(words[0]), Decimal(words[1])
    third = words[2] if len(words) == 3 else ""
    whole = all(_WHOLE.fullmatch(word) for word in words if not _LOG.fullmatch(word))
    if low > high:
        raise UsageError(f"{text!r} ends before it starts", hint=f"{words[1]}:{words[0]}?")
    logarithmic = _LOG.fullmatch(third)
    if logarithmic:
        if low <= 0:
            raise UsageError(f"{text!r}: a logarithmic range must be positive")
        count = int(logarithmic[1] or 0)
        return NumberRange(low, high, log=True, count=count, whole=whole)
    if third and not _NUMBER.fullmatch(third):
        raise UsageError(f"invalid step in {text!r}", hint=_SYNTAX_HINT)
    step = Decimal(third) if third else (Decimal(1) if whole else None)
    if step is not None and step <= 0:
        raise UsageError(f"invalid step in {text!r}", hint="steps must be positive")
    return NumberRange(low, high, step=step, whole=whole)


def _range_values(name: str, span: NumberRange) -> tuple[str, ...]:
    if span.log:
        return _logarithmic_values(name, span)
    if span.step is None:
        example = f"{name}={span.low}:{span.high}:{(span.high - span.low) / 4}"
        raise UsageError(f"{name} needs a step", hint=f"for example {example}")
    count = int((span.high - span.low) / span.step) + 1
    _check_count(name, count)
    return tuple(format(span.low + step * span.step, "f") for step in range(count))


def _logarithmic_values(name: str, span: NumberRange) -> tuple[str, ...]:
    decades = math.log10(span.high / span.low)
    count = span.count or math.floor(decades + 1e-9) + 1
    _check_count(name, count)
    reach = decades if span.count else float(count - 1)
    factors = [reach * step / max(1, count - 1) for step in range(count)]
    # 12 digits: drops the rounding error of the power.
    values = [float(f"{float(span.low) * 10**factor:.12g}") for factor in factors]
    texts = [str(round(value)) if span.whole else repr(value) for value in values]
    return tuple(dict.fromkeys(texts))


def _check_count(name: str, count: int) -> None:
    if count > _MAX_POINTS:
        raise UsageError(
            f"too many values of {name}: {count}", hint=f"a sweep has at most {_MAX_POINTS} points"
        )
