"""The types of arguments: what each accepts, and the error for anything else."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from danlu.util.suggest import suggest_name


class CallError(Exception):
    """An invalid call. ``argument`` is the name of the parameter to blame, or its position.

    It never leaves the language: :func:`danlu.lang.bind.declare_calls` knows where the call is, and
    raises a :class:`danlu.errors.BuildFileError` instead.
    """

    def __init__(self, message: str, *, hint: str = "", argument: str | int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.argument = argument


class ArgType(msgspec.Struct, frozen=True):
    """A type of argument: its name for people, its Python annotation, and its check.

    ``check`` returns the value in the one form that later phases see (tuples for sequences), or
    raises :class:`CallError` with a message that continues "argument 'x' ".
    """

    description: str
    annotation: str
    check: Callable[[object], object]


class ForeignValue(msgspec.Struct, frozen=True):
    """A value of the build file that cannot be part of a declaration: a function, a module."""

    type: str


class FunctionValue(msgspec.Struct, frozen=True):
    """A function of the build file as an argument; ``name`` is empty if it has no global name."""

    name: str


def _describe_value(value: object) -> str:
    if isinstance(value, FunctionValue):
        return "a function"
    if isinstance(value, ForeignValue):
        return f"a {value.type}"
    named = {
        str: "text",
        bool: "True or False",
        int: "a whole number",
        float: "a number",
        list: "a list",
        tuple: "a tuple",
        dict: "a dictionary",
        type(None): "None",
    }
    return named.get(type(value), f"a value of type {type(value).__name__}")


def _suggest_quoting(value: object) -> str:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f'write "{value}"' if plain else ""


def _check_text(value: object) -> str:
    if not isinstance(value, str):
        raise CallError(f"must be text, not {_describe_value(value)}", hint=_suggest_quoting(value))
    if "\0" in value:
        raise CallError("contains a NUL character")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise CallError("contains a lone surrogate, which cannot be encoded")
    return value


def _check_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise CallError(f"must be True or False, not {_describe_value(value)}")
    return value


def _check_items(
    value: object, *, check_item: Callable[[object], object], word: str
) -> tuple[object, ...]:
    if not isinstance(value, (list, tuple)):
        raise CallError(f"must be a list of {word}, not {_describe_value(value)}")
    items = []
    for position, item in enumerate(value, 1):
        try:
            items.append(check_item(item))
        except CallError as error:
            raise CallError(f"element {position} {error.message}", hint=error.hint) from None
    return tuple(items)


def _check_text_list(value: object) -> tuple[object, ...]:
    if isinstance(value, str):
        shown = value if len(value) < 40 else "…"
        raise CallError("must be a list of strings, not one string", hint=f'write ["{shown}"]')
    return _check_items(value, check_item=_check_text, word="strings")


def _check_argument_lists(value: object) -> tuple[object, ...]:
    rows = value if isinstance(value, (list, tuple)) else ()
    if isinstance(value, str) or (rows and all(isinstance(row, str) for row in rows)):
        raise CallError(
            "must be a list of commands, each a list of strings",
            hint='write [["program", "argument"]]: one inner list per command',
        )
    return _check_items(value, check_item=_check_text_list, word="lists of strings")


def _check_text_map(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping):
        raise CallError(f"must be a dictionary of strings, not {_describe_value(value)}")
    pairs = []
    for key, item in value.items():
        if not isinstance(key, str):
            raise CallError(f"has a key that is not text: {key!r}", hint=_suggest_quoting(key))
        try:
            pairs.append((_check_text(key), _check_text(item)))
        except CallError as error:
            raise CallError(f"'{key}' {error.message}", hint=error.hint) from None
    return tuple(pairs)


def integer(low: int, high: int) -> ArgType:
    """Return the type of integers from ``low`` to ``high``, both inclusive."""

    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            hint = f"write {value}" if isinstance(value, str) and value.isdecimal() else ""
            raise CallError(f"must be a whole number, not {_describe_value(value)}", hint=hint)
        if not low <= value <= high:
            shown = value if abs(value) < 10**18 else "that"
            raise CallError(f"must be from {low} to {high}, not {shown}")
        return value

    return ArgType(f"`int`, {low} to {high}", "int", check)


def choice(names: Iterable[str]) -> ArgType:
    """Return the type of strings that are one of ``names``."""
    known = tuple(names)

    def check(value: object) -> str:
        text = _check_text(value)
        if text not in known:
            raise CallError(
                f"must be one of {', '.join(known)}, not '{text}'",
                hint=suggest_name(text, known),
            )
        return text

    literals = [f'"{name}"' for name in known]
    description = "one of " + ", ".join(f"`{literal}`" for literal in literals)
    return ArgType(description, f"Literal[{', '.join(literals)}]", check)


def _check_function(value: object) -> FunctionValue:
    if not isinstance(value, FunctionValue):
        raise CallError(
            f"must be a build function, not {_describe_value(value)}",
            hint="name it without quotes and parentheses: source=development",
        )
    if not value.name:
        raise CallError(
            "must be a function that the build file defines at its top level",
            hint="define it there, or load or import it under its own name",
        )
    return value


def _check_parameters(value: object) -> tuple[tuple[str, bool | int | float | str], ...]:
    if not isinstance(value, Mapping):
        raise CallError(f"must be a dictionary of values, not {_describe_value(value)}")
    pairs = []
    for key, item in value.items():
        if not isinstance(key, str) or not key.isidentifier():
            raise CallError(f"has a key that is not a parameter's name: {key!r}")
        is_finite = not isinstance(item, float) or math.isfinite(item)
        if not isinstance(item, (bool, int, float, str)) or not is_finite:
            raise CallError(f"'{key}' must be text, a finite number, or True or False")
        pairs.append((key, _check_text(item) if isinstance(item, str) else item))
    return tuple(sorted(pairs))


_SECRET_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def _check_secret(value: object) -> tuple[str, str]:
    if isinstance(value, str):
        fields: dict[str, str] = {"id": value}
    elif isinstance(value, Mapping):
        fields = dict(_check_text_map(value))
    else:
        raise CallError(f"must be a secret's id or a dictionary, not {_describe_value(value)}")
    for name in fields:
        if name not in ("id", "target"):
            raise CallError(f"has no field '{name}'", hint="its fields are id and target")
    identity = fields.get("id", "")
    if not _SECRET_ID.fullmatch(identity):
        raise CallError(
            f"has the invalid id '{identity}'" if identity else "has no id",
            hint="use letters, digits, '_', '-' and '.', as in --secret id=token",
        )
    target = fields.get("target") or f"/run/secrets/{identity}"
    if not target.startswith("/") or target.endswith("/") or ".." in target.split("/"):
        raise CallError(
            f"has the invalid target '{target}'", hint="use the absolute path of a file"
        )
    return identity, target


def _check_secrets(value: object) -> tuple[object, ...]:
    if isinstance(value, (str, Mapping)):
        raise CallError("must be a list of secrets, not a single one", hint='write ["token"]')
    return _check_items(value, check_item=_check_secret, word="secrets")


TEXT = ArgType("`str`", "str", _check_text)
FLAG = ArgType("`bool`", "bool", _check_flag)
TEXTS = ArgType("`list[str]`", "Sequence[str]", _check_text_list)
TEXT_MAP = ArgType("`dict[str, str]`", "Mapping[str, str]", _check_text_map)
ARGUMENT_LISTS = ArgType("`list[list[str]]`", "Sequence[Sequence[str]]", _check_argument_lists)
BUILD_FUNCTION = ArgType("build function", "Callable[..., object]", _check_function)
PARAMETERS = ArgType(
    "`dict` of text, numbers and booleans",
    "Mapping[str, bool | float | str]",
    _check_parameters,
)
SECRETS = ArgType(
    "list of secrets: an id (`str`), or a `dict` of `id` and `target`",
    "Sequence[str | Mapping[str, str]]",
    _check_secrets,
)
PORT = integer(1, 65535)
PORT_OR_ANY = integer(0, 65535)
USER_ID = integer(0, 65535)
