"""The types of the arguments: what each accepts, and what it says of anything else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import msgspec

from danlu.lang.finding import Finding, suggestion

__all__ = [
    "ARGUMENT_LISTS",
    "FLAG",
    "PORT",
    "PORT_OR_ANY",
    "SECRETS",
    "TEXT",
    "TEXTS",
    "TEXT_MAP",
    "USER_ID",
    "Foreign",
    "Kind",
    "choice",
    "integer",
]


class Kind(msgspec.Struct, frozen=True):
    """A type of argument: its name for people, its Python annotation, and its check.

    ``check`` returns the value in the one form that later phases see (tuples for sequences), or
    raises :class:`Finding` with a message that continues "argument 'x' ".
    """

    words: str
    annotation: str
    check: Callable[[object], object]


class Foreign(msgspec.Struct, frozen=True):
    """A value of the build file that has no place in a declaration: a function, a module."""

    type: str


def _describe(value: object) -> str:
    if isinstance(value, Foreign):
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


def _quoted_hint(value: object) -> str:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f'write "{value}"' if plain else ""


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Finding(f"must be text, not {_describe(value)}", hint=_quoted_hint(value))
    if "\0" in value:
        raise Finding("holds a NUL character")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise Finding("holds a lone surrogate, which no encoding has")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise Finding(f"must be True or False, not {_describe(value)}")
    return value


def _items(value: object, *, one: Callable[[object], object], word: str) -> tuple[object, ...]:
    if not isinstance(value, (list, tuple)):
        raise Finding(f"must be a list of {word}, not {_describe(value)}")
    items = []
    for position, item in enumerate(value, 1):
        try:
            items.append(one(item))
        except Finding as finding:
            raise Finding(f"element {position} {finding.message}", hint=finding.hint) from None
    return tuple(items)


def _texts(value: object) -> tuple[object, ...]:
    if isinstance(value, str):
        shown = value if len(value) < 40 else "…"
        raise Finding("must be a list of texts, not one text", hint=f'write ["{shown}"]')
    return _items(value, one=_text, word="texts")


def _argument_lists(value: object) -> tuple[object, ...]:
    rows = value if isinstance(value, (list, tuple)) else ()
    if isinstance(value, str) or (rows and all(isinstance(row, str) for row in rows)):
        raise Finding(
            "must be a list of commands, each a list of texts",
            hint='write [["program", "argument"]]: one inner list a command',
        )
    return _items(value, one=_texts, word="lists of texts")


def _text_map(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping):
        raise Finding(f"must be a dictionary of texts, not {_describe(value)}")
    pairs = []
    for key, item in value.items():
        if not isinstance(key, str):
            raise Finding(f"has a key that is not text: {key!r}", hint=_quoted_hint(key))
        try:
            pairs.append((_text(key), _text(item)))
        except Finding as finding:
            raise Finding(f"'{key}' {finding.message}", hint=finding.hint) from None
    return tuple(pairs)


def integer(low: int, high: int, words: str = "") -> Kind:
    """Return the kind of whole numbers from ``low`` to ``high``, both inclusive."""

    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            hint = f"write {value}" if isinstance(value, str) and value.isdecimal() else ""
            raise Finding(f"must be a whole number, not {_describe(value)}", hint=hint)
        if not low <= value <= high:
            shown = value if abs(value) < 10**18 else "that"
            raise Finding(f"must be from {low} to {high}, not {shown}")
        return value

    return Kind(words or f"whole number, {low} to {high}", "int", check)


def choice(names: Iterable[str]) -> Kind:
    """Return the kind of texts that are one of ``names``."""
    known = tuple(names)

    def check(value: object) -> str:
        text = _text(value)
        if text not in known:
            raise Finding(
                f"cannot be '{text}'; it is one of {', '.join(known)}",
                hint=suggestion(text, known),
            )
        return text

    literal = ", ".join(f'"{name}"' for name in known)
    return Kind("one of " + ", ".join(f"`{name}`" for name in known), f"Literal[{literal}]", check)


_SECRET_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def _secret(value: object) -> tuple[str, str]:
    if isinstance(value, str):
        fields: dict[str, str] = {"id": value}
    elif isinstance(value, Mapping):
        fields = dict(_text_map(value))
    else:
        raise Finding(f"must be a secret's id or a dictionary, not {_describe(value)}")
    for name in fields:
        if name not in ("id", "target"):
            raise Finding(f"has no field '{name}'", hint="the fields are id and target")
    identity = fields.get("id", "")
    if not _SECRET_ID.fullmatch(identity):
        raise Finding(
            f"has the id '{identity}'" if identity else "has no id",
            hint="an id is letters, digits, '_', '-' and '.', as in --secret id=token",
        )
    target = fields.get("target") or f"/run/secrets/{identity}"
    if not target.startswith("/") or target.endswith("/") or ".." in target.split("/"):
        raise Finding(f"has the target '{target}'", hint="a target is an absolute path of a file")
    return identity, target


def _secrets(value: object) -> tuple[object, ...]:
    if isinstance(value, (str, Mapping)):
        raise Finding("must be a list of secrets, not one", hint='write ["token"]')
    return _items(value, one=_secret, word="secrets")


TEXT = Kind("text", "str", _text)
FLAG = Kind("True or False", "bool", _flag)
TEXTS = Kind("list of texts", "Sequence[str]", _texts)
TEXT_MAP = Kind("dictionary of texts", "Mapping[str, str]", _text_map)
ARGUMENT_LISTS = Kind("list of lists of texts", "Sequence[Sequence[str]]", _argument_lists)
SECRETS = Kind(
    "list of secrets: an id, or a dictionary of `id` and `target`",
    "Sequence[str | Mapping[str, str]]",
    _secrets,
)
PORT = integer(1, 65535, "port")
PORT_OR_ANY = integer(0, 65535, "port, 0 for any")
USER_ID = integer(0, 65535)
