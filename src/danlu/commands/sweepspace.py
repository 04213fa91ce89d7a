"""What a sweep goes over: ``--sweep lr=0.1,0.01 --sweep depth=2:6`` as axes and as points."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal

import msgspec

from danlu.errors import UsageError

__all__ = ["Axis", "Point", "Span", "grid", "parse_axes", "parse_axis", "parse_choices"]

Point = Mapping[str, str]
"""A value, as text, for the name of each axis."""

_LIMIT = 10_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
_WHOLE = re.compile(r"[+-]?\d+")
_LOG = re.compile(r"log(\d{0,5})")
_HINT = "write lr=0.1,0.01 or depth=2:6 or width=32:256:32 or rate=1e-4:1e-1:log"


class Span(msgspec.Struct, frozen=True):
    """All numbers from ``low`` to ``high``, both included.

    ``step`` is None where any number between may be meant. ``log`` spreads them evenly by
    logarithm; ``count`` is how many of them make a grid then, 0 for one a decade.
    """

    low: Decimal
    high: Decimal
    step: Decimal | None = None
    log: bool = False
    count: int = 0
    whole: bool = False


class Axis(msgspec.Struct, frozen=True):
    """One name that a sweep varies: over ``choices`` as they were written, or over a ``span``."""

    name: str
    choices: tuple[str, ...] = ()
    span: Span | None = None

    def values(self) -> tuple[str, ...]:
        """Its values in a grid; :class:`UsageError` where a span has no end of them."""
        return self.choices if self.span is None else _values(self.name, self.span)


def parse_axes(texts: Sequence[str]) -> tuple[Axis, ...]:
    """The axes of several ``NAME=VALUES``; :class:`UsageError` where a name comes twice."""
    axes = tuple(parse_axis(text) for text in texts)
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            listed = f"{name}=A,B,C"
            raise UsageError(f"{name} is swept twice", hint=f"give all its values once: {listed}")
    return axes


def parse_axis(text: str) -> Axis:
    """``NAME=A,B,C``, ``NAME=LOW:HIGH[:STEP]`` or ``NAME=LOW:HIGH:log[COUNT]``.

    A range includes both ends; the step of whole numbers is 1. What is no range of numbers is a
    list of texts. Raises :class:`UsageError`.
    """
    name, equals, values = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise UsageError(f"{text!r} is not a sweep", hint=_HINT)
    words = values.split(":")
    if len(words) in (2, 3) and all(_NUMBER.fullmatch(word) for word in words[:2]):
        return Axis(name, span=_span(text, words))
    return parse_choices(name, values.split(","))


def parse_choices(name: str, values: Sequence[str]) -> Axis:
    """An axis of these values; :class:`UsageError` where one is empty or comes twice."""
    text = f"{name}={','.join(values)}"
    if not _NAME.fullmatch(name):
        raise UsageError(f"{text!r} is not a sweep", hint=_HINT)
    if not values or not all(values):
        raise UsageError(f"{text!r} has an empty value", hint=_HINT)
    if len(set(values)) < len(values):
        raise UsageError(f"{text!r} has one value twice", hint=_HINT)
    return Axis(name, choices=tuple(values))


def grid(axes: Sequence[Axis]) -> tuple[Point, ...]:
    """Every combination of the axes' values, the last axis changing first.

    Raises :class:`UsageError` beyond 10,000, and for a range of fractions without a step.
    """
    values = [axis.values() for axis in axes]
    count = math.prod(map(len, values))
    if count > _LIMIT:
        raise UsageError(f"a sweep over {count} points is too much", hint=f"at most {_LIMIT}")
    names = [axis.name for axis in axes]
    return tuple(dict(zip(names, one, strict=True)) for one in itertools.product(*values))


def _span(text: str, words: Sequence[str]) -> Span:
    low, high = Decimal(words[0]), Decimal(words[1])
    third = words[2] if len(words) == 3 else ""
    whole = all(_WHOLE.fullmatch(word) for word in words if not _LOG.fullmatch(word))
    if low > high:
        raise UsageError(f"{text!r} ends before it begins", hint=f"{words[1]}:{words[0]}?")
    logarithmic = _LOG.fullmatch(third)
    if logarithmic:
        if low <= 0:
            raise UsageError(f"{text!r}: only positive numbers have a logarithm")
        count = int(logarithmic[1] or 0)
        return Span(low, high, log=True, count=count, whole=whole)
    if third and not _NUMBER.fullmatch(third):
        raise UsageError(f"{text!r} has no number as its step", hint=_HINT)
    step = Decimal(third) if third else (Decimal(1) if whole else None)
    if step is not None and step <= 0:
        raise UsageError(f"{text!r} has a step that leads nowhere", hint="steps are positive")
    return Span(low, high, step=step, whole=whole)


def _values(name: str, span: Span) -> tuple[str, ...]:
    if span.log:
        return _logarithmic(name, span)
    if span.step is None:
        example = f"{name}={span.low}:{span.high}:{(span.high - span.low) / 4}"
        raise UsageError(f"how fine is {name} to be swept?", hint=f"give a step, like {example}")
    count = int((span.high - span.low) / span.step) + 1
    _check(name, count)
    return tuple(format(span.low + step * span.step, "f") for step in range(count))


def _logarithmic(name: str, span: Span) -> tuple[str, ...]:
    decades = math.log10(span.high / span.low)
    count = span.count or math.floor(decades + 1e-9) + 1
    _check(name, count)
    reach = decades if span.count else float(count - 1)
    factors = [reach * step / max(1, count - 1) for step in range(count)]
    # 12 digits: what a power leaves behind its last exact digit is not meant.
    values = [float(f"{float(span.low) * 10**factor:.12g}") for factor in factors]
    texts = [str(round(value)) if span.whole else repr(value) for value in values]
    return tuple(dict.fromkeys(texts))


def _check(name: str, count: int) -> None:
    if count > _LIMIT:
        raise UsageError(f"{name} has {count} values", hint=f"a sweep has {_LIMIT} points at most")
