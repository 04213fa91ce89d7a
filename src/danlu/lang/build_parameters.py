"""The parameters of a build function, which ``--set NAME=VALUE`` gives values to.

``def build(gpu=False)`` describes two environments. Each combination of values is a *target*, such
as ``build(gpu=True)``, with its own section in the lock. The type of a parameter is that of its
default, which is read from the file without evaluating it.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterable, Mapping

from danlu.errors import UsageError
from danlu.lang.arg_types import CallError
from danlu.lang.source_files import find_build_functions, normalize_newlines
from danlu.util.suggest import did_you_mean

Value = bool | int | float | str

_TARGET = re.compile(r"\s*(?P<function>[^\s()]*)\s*(?:\((?P<values>.*)\)\s*)?", re.DOTALL)
_BOOLEANS = {"true": True, "false": False}


def parse_target(text: str) -> tuple[str, dict[str, str]]:
    """Parse ``build`` or ``build(gpu=true, python=3.12)``; return the function and the values.

    Raises :class:`UsageError` if it is neither.
    """
    match = _TARGET.fullmatch(text)
    if match is None:
        raise UsageError(
            f"invalid build function {text!r}", hint="use FUNCTION or FUNCTION(NAME=VALUE, …)"
        )
    values = [part.strip() for part in (match["values"] or "").split(",")]
    return match["function"], parse_settings(value for value in values if value)


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """Parse ``NAME=VALUE`` texts; the last value of a name wins.

    Raises :class:`UsageError` for any other text.
    """
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise UsageError(f"invalid parameter {text!r}", hint="use NAME=VALUE, such as gpu=true")
        settings[name.strip()] = _strip_quotes(value.strip())
    return settings


def _strip_quotes(text: str) -> str:
    """Remove the quotes of ``"text"``: in ``build(python="3.12")`` a shell leaves them."""
    quoted = len(text) > 1 and text[0] in "\"'" and text[0] == text[-1]
    return text[1:-1] if quoted else text


def bind_parameters(
    text: str, file: str, function: str, settings: Mapping[str, str]
) -> dict[str, Value]:
    """Return the values of a function's parameters that differ from their defaults, sorted.

    ``text`` is the build file's. Raises :class:`UsageError` for a parameter that the function does
    not have and for a value that is not of its type.
    """
    defaults = _read_defaults(text, function)
    if defaults is None:
        names = find_build_functions(text)
        raise UsageError(
            f"no build function '{function}' in {file}",
            hint=did_you_mean(function, names, otherwise=f"{file} defines: {', '.join(names)}"),
        )
    values: dict[str, Value] = {}
    for name, setting in sorted(settings.items()):
        if name not in defaults:
            known = ", ".join(defaults) or "none"
            raise UsageError(
                f"'{function}' in {file} has no parameter '{name}'",
                hint=did_you_mean(name, defaults, otherwise=f"its parameters: {known}"),
            )
        value = _convert_value(function, name, setting, defaults[name])
        if value != defaults[name] or type(value) is not type(defaults[name]):
            values[name] = value
    return values


def bind_values(text: str, function: str, values: Iterable[tuple[str, Value]]) -> dict[str, Value]:
    """Return the values that a function is called with and that are not its defaults, sorted.

    As :func:`bind_parameters`, for values of the build file; without checks for a function that
    ``text`` does not define, but loads. Raises :class:`CallError`.
    """
    defaults = _read_defaults(text, function)
    bound: dict[str, Value] = {}
    for name, value in sorted(values):
        if defaults is not None and name not in defaults:
            raise CallError(
                f"'{function}' has no parameter '{name}'",
                hint=did_you_mean(
                    name, defaults, otherwise=f"its parameters: {', '.join(defaults) or 'none'}"
                ),
                argument="parameters",
            )
        default = defaults[name] if defaults is not None else None
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if isinstance(default, Value) and type(value) is not type(default):
            raise CallError(
                f"the value of '{name}' must be of the type of its default, {default!r}",
                argument="parameters",
            )
        if value != default or type(value) is not type(default):
            bound[name] = value
    return bound


def format_target(function: str, values: Mapping[str, Value]) -> str:
    """Return ``build(gpu=True)``, or only the function's name if there are no values.

    It is also the call as both languages of build files write it.
    """
    if not values:
        return function
    return f"{function}({', '.join(f'{name}={_format_value(v)}' for name, v in values.items())})"


def _format_value(value: Value) -> str:
    # JSON's escapes are valid in Starlark, except for pairs of surrogates.
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _read_defaults(text: str, function: str) -> dict[str, object] | None:
    """Return a function's parameters and their defaults, None if the file does not define it.

    The default is None for a parameter without one, and for a default that is not a literal.
    """
    try:
        tree = ast.parse(normalize_newlines(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # evaluation reports it with its line
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return _literal_defaults(node.args)
    return None


def _literal_defaults(arguments: ast.arguments) -> dict[str, object]:
    positional = arguments.args
    missing: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    pairs = [
        *zip(positional, [*missing, *arguments.defaults], strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return {argument.arg: _literal_value(default) for argument, default in pairs}


def _literal_value(node: ast.expr | None) -> object:
    try:
        return ast.literal_eval(node) if node is not None else None
    except (ValueError, TypeError):  # TypeError: `{[]: 1}`
        return None


def _convert_value(function: str, name: str, setting: str, default: object) -> Value:
    """Return a setting as a value of its default's type; without a default it stays text."""
    expected = ""
    try:
        if isinstance(default, bool):
            expected = "true or false"
            return _BOOLEANS[setting.lower()]
        if isinstance(default, int):
            expected = "an integer"
            return int(setting)
        if isinstance(default, float):
            expected = "a finite number"
            return _parse_finite(setting)
        if not isinstance(default, str | None):
            raise UsageError(
                f"'{name}' of '{function}' cannot be set: its default is a {_name_type(default)}",
                hint="only strings, numbers, and True or False can be set",
            )
    except (KeyError, ValueError):
        raise UsageError(
            f"invalid value {setting!r} for '{name}' of '{function}': expected {expected}"
        ) from None
    return setting


def _name_type(value: object) -> str:
    return "dictionary" if isinstance(value, dict) else type(value).__name__


def _parse_finite(text: str) -> float:
    # Starlark has no literal for infinity.
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number
