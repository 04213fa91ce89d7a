"""Convert the values of a job's options from text.

Every converter raises :class:`~danlu.errors.UsageError`. The message names neither the option nor
the line: the parser adds them.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable
from typing import Any

from danlu.engine.container_options import split_volume
from danlu.errors import UsageError
from danlu.sweeps.space import parse_axis
from danlu.training.registry import find_framework
from danlu.util.dns_label import is_dns_1035_label
from danlu.util.human import parse_duration, parse_size
from danlu.util.quantity import is_quantity, to_quantity
from danlu.util.suggest import did_you_mean

Converter = Callable[[str], Any]

_DIGITS = re.compile(r"[0-9]{1,9}")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def whole_number(minimum: int = 0) -> Converter:
    """Return a converter for integers of at least ``minimum``."""

    def convert(text: str) -> int:
        if not _DIGITS.fullmatch(text) or int(text) < minimum:
            hint = _comment_hint(text) or f"must be {minimum} or more"
            raise UsageError(f"invalid whole number {text!r}", hint=hint)
        return int(text)

    return convert


def _comment_hint(text: str) -> str:
    return "put the comment on a separate line" if "#" in text else ""


def quantity(text: str) -> str:
    """Check a Kubernetes quantity (``500m``, ``4Gi``) or a size such as ``4GB``."""
    if not is_quantity(to_quantity(text)):
        hint = _comment_hint(text) or "examples: 2, 500m, 4Gi"
        raise UsageError(f"invalid quantity {text!r}", hint=hint)
    return text


def choice(*choices: str) -> Converter:
    """Return a converter for one of ``choices``, ignoring case."""
    known = {value.lower(): value for value in choices}

    def convert(text: str) -> str:
        if text.lower() not in known:
            hint = did_you_mean(text, choices, otherwise=f"one of {', '.join(choices)}")
            raise UsageError(f"invalid value {text!r}", hint=hint)
        return known[text.lower()]

    return convert


def is_boolean(text: str) -> bool:
    """Return whether ``text`` spells a boolean."""
    return text.lower() in _BOOLEANS


def boolean(text: str) -> bool:
    """Convert ``true``, ``yes``, ``1``, ``false``, ``no`` or ``0``, ignoring case."""
    if not is_boolean(text):
        raise UsageError(f"invalid boolean {text!r}", hint="use true or false")
    return _BOOLEANS[text.lower()]


def framework(text: str) -> str:
    """Return the registered name of a framework, given its name or an alias."""
    return find_framework(text).name


def variable_names(text: str) -> tuple[str, ...]:
    """Split comma-separated names of variables."""
    return _split_names(text, "variable name", "x or x,y", _is_name)


def module_names(text: str) -> tuple[str, ...]:
    """Split comma-separated names of modules or packages."""
    return _split_names(
        text,
        "module name",
        "helpers or package.helpers, as in an import",
        lambda name: all(map(_is_name, name.split("."))),
    )


def _split_names(
    text: str, kind: str, example: str, is_valid: Callable[[str], bool]
) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not is_valid(name):
            raise UsageError(f"invalid {kind} {name!r}", hint=f"write it like {example}")
    return tuple(dict.fromkeys(names))


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def env(text: str) -> dict[str, str] | str:
    """Convert ``NAME=VALUE`` to a mapping; return a build file, ``FILE[:FUNC]``, unchanged."""
    variable = _VARIABLE.fullmatch(text)
    if variable:
        return {variable[1]: variable[2]}
    if "=" in text:
        raise UsageError(
            f"{text!r} is neither a variable nor a build file",
            hint="write NAME=VALUE, or FILE[:FUNCTION]",
        )
    return text


def volume(text: str) -> str:
    """Check ``SOURCE:/TARGET``, optionally followed by ``:ro`` or ``:rw``."""
    split_volume(text)
    return text


def single_word(text: str) -> str:
    """Check that ``text`` contains no white space."""
    if len(text.split()) != 1:
        raise UsageError(f"{text!r} is more than one word", hint=_comment_hint(text))
    return text


def job_name(text: str) -> str:
    """Check that Kubernetes accepts ``text`` as the name of a job."""
    if not is_dns_1035_label(text):
        near = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].rstrip("-")
        hint = f"did you mean {near}?" if is_dns_1035_label(near) else "example: mnist-2"
        raise UsageError(
            f"invalid job name {text!r}: use at most 63 lower-case letters, digits and -",
            hint=hint,
        )
    return text


def duration(text: str) -> float:
    """Convert a duration (``90``, ``90s``, ``1h30m``) to seconds."""
    try:
        return parse_duration(text)
    except ValueError:
        raise UsageError(f"invalid duration {text!r}", hint="examples: 90s, 1h30m, 2d") from None


def size(text: str) -> int:
    """Convert a size (``500MB``, ``2GiB``) to bytes."""
    try:
        return parse_size(text)
    except ValueError:
        raise UsageError(f"invalid size {text!r}", hint="examples: 500MB, 2GiB") from None


def pattern(text: str) -> str:
    """Check a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(f"invalid regular expression {text!r}: {error}") from None
    return text


def sweep_axis(text: str) -> str:
    """Check a name and its values in the syntax of ``danlu train --sweep``."""
    parse_axis(text)
    return text
