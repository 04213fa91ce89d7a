"""Checks of a manifest's shape, put together from small ones: each gives the findings of a value.

A check is given the path of a value, for its findings, and the value, which is there: a field
whose value is null counts as absent everywhere, as in Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from danlu.lang.finding import suggestion
from danlu.training.framework import Finding

__all__ = [
    "UNKNOWN",
    "Check",
    "anything",
    "choice",
    "each",
    "entries",
    "integer",
    "quantity",
    "record",
    "text",
    "truth",
]

Check = Callable[[str, Any], Iterator[Finding]]

UNKNOWN = "there is no such field"

INT32 = 2**31 - 1
INT64 = 2**63 - 1
_SHOWN = 12
# k8s.io/apimachinery, resource.Quantity; what asks for resources is never negative.
_QUANTITY = re.compile(r"[+]?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")


def anything(path: str, value: Any) -> Iterator[Finding]:
    """No finding, whatever the value is."""
    return iter(())


def text(path: str, value: Any) -> Iterator[Finding]:
    """Findings of what must be text."""
    if not isinstance(value, str):
        scalar = not isinstance(value, Mapping | list)
        hint = f'write it in quotes: "{_written(value)}"' if scalar else ""
        yield Finding(path, f"must be text, not {_named(value)}", hint)


def truth(path: str, value: Any) -> Iterator[Finding]:
    """Findings of what must be true or false."""
    if not isinstance(value, bool):
        quoted = str(value).lower() if isinstance(value, str) else ""
        hint = f"write it without quotes: {quoted}" if quoted in ("true", "false") else ""
        yield Finding(path, f"must be true or false, not {_named(value)}", hint)


def integer(least: int = 0, most: int = INT32) -> Check:
    """A check of a whole number within bounds."""

    def check(path: str, value: Any) -> Iterator[Finding]:
        if isinstance(value, bool) or not isinstance(value, int):
            quoted = value.strip() if isinstance(value, str) else ""
            number = quoted.lstrip("+-").isdecimal()
            hint = f"write it without quotes: {quoted}" if number else ""
            yield Finding(path, f"must be a whole number, not {_named(value)}", hint)
        elif value < 0 <= least:
            yield Finding(path, f"must not be negative, as {value} is", f"{least} or more")
        elif value < least:
            yield Finding(path, f"must be at least {least}, not {value}")
        elif value > most:
            yield Finding(path, f"must be at most {most}, not {value}")

    return check


def choice(names: Sequence[str]) -> Check:
    """A check of one of ``names``; empty text counts as absent."""

    def check(path: str, value: Any) -> Iterator[Finding]:
        if not isinstance(value, str):
            yield from text(path, value)
        elif value and value not in names:
            hint = suggestion(value, names) or f"one of {', '.join(names)}"
            yield Finding(path, f"cannot be '{value}'", hint)

    return check


def quantity(path: str, value: Any) -> Iterator[Finding]:
    """Findings of an amount of a resource (``2``, ``500m``, ``4Gi``)."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and value < 0:
        yield Finding(path, f"must not be negative, as {value} is")
    elif not number and not (isinstance(value, str) and _QUANTITY.fullmatch(value)):
        yield Finding(path, f"must be an amount, not {_named(value)}", "as 2, 500m or 4Gi are")


def record(
    fields: Mapping[str, Check],
    required: Sequence[str] = (),
    *,
    elsewhere: Mapping[str, str] = {},
) -> Check:
    """A check of a mapping with these fields and no others.

    ``elsewhere`` has the hints for fields that are known, but have no place here.
    """

    def check(path: str, value: Any) -> Iterator[Finding]:
        if not isinstance(value, Mapping):
            yield Finding(path or "(document)", f"must have fields, not be {_named(value)}")
            return
        for name in required:
            if value.get(name) is None:
                yield Finding(below(path, name), "is required")
        for name, member in value.items():
            if name not in fields:
                hint = elsewhere.get(name) or _known(name, fields)
                yield Finding(below(path, name), UNKNOWN, hint)
            elif member is not None:
                yield from fields[name](below(path, name), member)

    return check


def each(check_one: Check) -> Check:
    """A check of a list."""

    def check(path: str, value: Any) -> Iterator[Finding]:
        if not isinstance(value, list | tuple):
            yield Finding(path, f"must be a list, not {_named(value)}")
            return
        for index, item in enumerate(value):
            if item is None:
                yield Finding(f"{path}[{index}]", "must not be empty")
            else:
                yield from check_one(f"{path}[{index}]", item)

    return check


def entries(check_one: Check, *, empty: bool = True) -> Check:
    """A check of a mapping from names of the user's own; ``empty`` allows null as a value."""

    def check(path: str, value: Any) -> Iterator[Finding]:
        if not isinstance(value, Mapping):
            yield Finding(path, f"must have entries, not be {_named(value)}")
            return
        for name, member in value.items():
            if member is not None:
                yield from check_one(f"{path}[{name}]", member)
            elif not empty:
                yield Finding(f"{path}[{name}]", "must not be empty")

    return check


def below(path: str, name: str) -> str:
    """The path of the field ``name``."""
    return f"{path}.{name}" if path else name


def _known(name: str, fields: Mapping[str, Check]) -> str:
    return suggestion(name, fields, what="fields" if len(fields) <= _SHOWN else "")


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _named(value: object) -> str:
    """What a value is, in the words of YAML."""
    match value:
        case bool():
            return _written(value)
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the text '{value}'" if len(value) <= 40 else "text"
        case Mapping():
            return "fields"
        case list() | tuple():
            return "a list"
        case _:
            return "empty" if value is None else type(value).__name__
