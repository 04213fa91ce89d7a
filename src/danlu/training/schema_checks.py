"""Checks of the shape of a manifest, composed from small ones.

A check takes the path and the value of a field and yields errors. The value is never null: a null
field is absent, as in Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from danlu.training.framework import FieldError
from danlu.util.quantity import is_quantity
from danlu.util.suggest import did_you_mean

FieldCheck = Callable[[str, Any], Iterator[FieldError]]

UNKNOWN_FIELD = "unknown field"

INT32 = 2**31 - 1
INT64 = 2**63 - 1
_MAX_LISTED_FIELDS = 12


def any_value(path: str, value: Any) -> Iterator[FieldError]:
    """Accept any value."""
    return iter(())


def check_text(path: str, value: Any) -> Iterator[FieldError]:
    """Check a string."""
    if not isinstance(value, str):
        scalar = not isinstance(value, Mapping | list)
        hint = f'quote it: "{_yaml_scalar(value)}"' if scalar else ""
        yield FieldError(path, f"must be a string, not {_describe_value(value)}", hint)


def check_boolean(path: str, value: Any) -> Iterator[FieldError]:
    """Check a boolean."""
    if not isinstance(value, bool):
        quoted = str(value).lower() if isinstance(value, str) else ""
        hint = f"remove the quotes: {quoted}" if quoted in ("true", "false") else ""
        yield FieldError(path, f"must be true or false, not {_describe_value(value)}", hint)


def integer_check(minimum: int = 0, maximum: int = INT32) -> FieldCheck:
    """Return a check of an integer within bounds."""

    def check(path: str, value: Any) -> Iterator[FieldError]:
        if isinstance(value, bool) or not isinstance(value, int):
            quoted = value.strip() if isinstance(value, str) else ""
            number = quoted.lstrip("+-").isdecimal()
            hint = f"remove the quotes: {quoted}" if number else ""
            yield FieldError(path, f"must be an integer, not {_describe_value(value)}", hint)
        elif value < 0 <= minimum:
            yield FieldError(path, f"must not be negative: {value}", f"{minimum} or more")
        elif value < minimum:
            yield FieldError(path, f"must be at least {minimum}, not {value}")
        elif value > maximum:
            yield FieldError(path, f"must be at most {maximum}, not {value}")

    return check


def choice_check(names: Sequence[str]) -> FieldCheck:
    """Return a check of one of ``names``; an empty string counts as absent."""

    def check(path: str, value: Any) -> Iterator[FieldError]:
        if not isinstance(value, str):
            yield from check_text(path, value)
        elif value and value not in names:
            otherwise = f"one of {', '.join(names)}"
            hint = did_you_mean(value, names, otherwise=otherwise, template="'{}'")
            yield FieldError(path, f"cannot be '{value}'", hint)

    return check


def check_quantity(path: str, value: Any) -> Iterator[FieldError]:
    """Check a resource quantity (``2``, ``500m``, ``4Gi``)."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and value < 0:
        yield FieldError(path, f"must not be negative: {value}")
    elif not number and not (isinstance(value, str) and is_quantity(value)):
        yield FieldError(
            path, f"must be a quantity, not {_describe_value(value)}", "for example 2, 500m or 4Gi"
        )


def record_check(
    fields: Mapping[str, FieldCheck],
    required: Sequence[str] = (),
    *,
    elsewhere: Mapping[str, str] = {},
) -> FieldCheck:
    """Return a check of a mapping with these fields and no others.

    ``elsewhere`` has hints for fields that are known but belong somewhere else.
    """

    def check(path: str, value: Any) -> Iterator[FieldError]:
        if not isinstance(value, Mapping):
            yield FieldError(
                path or "(document)", f"must be a mapping, not {_describe_value(value)}"
            )
            return
        for name in required:
            if value.get(name) is None:
                yield FieldError(child_path(path, name), "is required")
        for name, member in value.items():
            if name not in fields:
                hint = elsewhere.get(name) or _suggest_field(name, fields)
                yield FieldError(child_path(path, name), UNKNOWN_FIELD, hint)
            elif member is not None:
                yield from fields[name](child_path(path, name), member)

    return check


def list_check(check_item: FieldCheck) -> FieldCheck:
    """Return a check of a list."""

    def check(path: str, value: Any) -> Iterator[FieldError]:
        if not isinstance(value, list | tuple):
            yield FieldError(path, f"must be a list, not {_describe_value(value)}")
            return
        for index, item in enumerate(value):
            if item is None:
                yield FieldError(f"{path}[{index}]", "must not be empty")
            else:
                yield from check_item(f"{path}[{index}]", item)

    return check


def map_check(check_item: FieldCheck, *, empty: bool = True) -> FieldCheck:
    """Return a check of a mapping with arbitrary keys; ``empty`` allows null values."""

    def check(path: str, value: Any) -> Iterator[FieldError]:
        if not isinstance(value, Mapping):
            yield FieldError(path, f"must be a mapping, not {_describe_value(value)}")
            return
        for name, member in value.items():
            if member is not None:
                yield from check_item(f"{path}[{name}]", member)
            elif not empty:
                yield FieldError(f"{path}[{name}]", "must not be empty")

    return check


def child_path(path: str, name: str) -> str:
    """Return the path of the field ``name``."""
    return f"{path}.{name}" if path else name


def _suggest_field(name: str, fields: Mapping[str, FieldCheck]) -> str:
    listed = f"fields: {', '.join(sorted(fields))}" if len(fields) <= _MAX_LISTED_FIELDS else ""
    return did_you_mean(name, fields, otherwise=listed, template="'{}'")


def _yaml_scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _describe_value(value: object) -> str:
    """Describe a value in YAML's terms."""
    match value:
        case bool():
            return _yaml_scalar(value)
        case int() | float():
            return f"the number {value}"
        case str():
            return f"the string '{value}'" if len(value) <= 40 else "a string"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return "empty" if value is None else type(value).__name__
