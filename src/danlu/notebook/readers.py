"""What the value of a key may be: each reader takes a text and gives what it means.

All of them raise :class:`~danlu.errors.UsageError` that names neither the key nor the line, which
their caller knows.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

from danlu.errors import UsageError

__all__ = [
    "Reader",
    "any_of",
    "duration",
    "environment",
    "framework",
    "job_name",
    "module_names",
    "names",
    "nearest",
    "pattern",
    "quantity",
    "sweep",
    "variables",
    "volume",
    "whole",
    "word",
    "yes",
]

Reader = Callable[[str], Any]

_DIGITS = re.compile(r"[0-9]{1,9}")
_AMOUNT = re.compile(r"(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)
_LARGE = re.compile(r"\d+(\.\d+)?\s*[kKMGTP]i?[bB]", re.ASCII)
_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_YES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def whole(least: int = 0) -> Reader:
    """A whole number of ``least`` or more."""

    def read(text: str) -> int:
        if not _DIGITS.fullmatch(text) or int(text) < least:
            hint = f"{least} or more" if _comment(text) == "" else _comment(text)
            raise UsageError(f"{text!r} is no whole number", hint=hint)
        return int(text)

    return read


def _comment(text: str) -> str:
    return "a comment needs a line of its own" if "#" in text else ""


def quantity(text: str) -> str:
    """An amount as Kubernetes writes it, or ``4GB`` as ``danlu train`` takes it too."""
    if not _AMOUNT.fullmatch(text) and not _LARGE.fullmatch(text):
        hint = _comment(text) or "as 2, 500m or 4Gi are"
        raise UsageError(f"{text!r} is no amount", hint=hint)
    return text


def any_of(*choices: str) -> Reader:
    """One of ``choices`` in any letter case, as it is written there."""
    known = {one.lower(): one for one in choices}

    def read(text: str) -> str:
        if text.lower() not in known:
            near = get_close_matches(text.lower(), known, 1)
            listed = f"one of {', '.join(choices)}"
            hint = f"did you mean {known[near[0]]}?" if near else listed
            raise UsageError(f"it cannot be {text!r}", hint=hint)
        return known[text.lower()]

    return read


def yes(text: str) -> bool:
    """Whether something is wanted."""
    if text.lower() not in _YES:
        raise UsageError(f"{text!r} is neither true nor false", hint="true or false")
    return _YES[text.lower()]


def framework(text: str) -> str:
    """A framework by any of its names, as the registry calls it."""
    from danlu.training.registry import framework_of

    return framework_of(text).name


def names(text: str) -> tuple[str, ...]:
    """Names of variables, with commas between them."""
    return _listed(text, "name of a variable", "x or x,y", _is_name)


def module_names(text: str) -> tuple[str, ...]:
    """Names of modules or packages, with commas between them."""
    return _listed(
        text,
        "name of a module",
        "helpers or package.helpers, as in an import",
        lambda one: all(map(_is_name, one.split("."))),
    )


def _listed(text: str, what: str, example: str, good: Callable[[str], bool]) -> tuple[str, ...]:
    found = [one.strip() for one in text.split(",")]
    for one in found:
        if not good(one):
            raise UsageError(f"{one!r} is no {what}", hint=f"write it like {example}")
    return tuple(dict.fromkeys(found))


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def variables(text: str) -> dict[str, str] | None:
    """``NAME=VALUE`` as a variable of the environment; None where it is of another form."""
    found = _VARIABLE.fullmatch(text)
    return {found[1]: found[2]} if found else None


def environment(text: str) -> str:
    """A build file and its function, ``FILE[:FUNC]``."""
    if "=" in text:
        raise UsageError(
            f"{text!r} is neither a variable nor a build file",
            hint="write NAME=VALUE, or FILE[:FUNCTION]",
        )
    return text


def volume(text: str) -> str:
    """``SOURCE:/TARGET``, and ``:ro`` or ``:rw`` after it."""
    words = text.split(":")
    mode = words.pop() if len(words) == 3 else "rw"
    if len(words) != 2 or mode not in ("ro", "rw") or not words[0] or words[1][:1] != "/":
        hint = "volumes look like SOURCE:/TARGET or SOURCE:/TARGET:ro"
        raise UsageError(f"{text!r} is no volume", hint=hint)
    return text


def word(text: str) -> str:
    """Anything without a blank."""
    if len(text.split()) != 1:
        raise UsageError(f"{text!r} is more than one word", hint=_comment(text))
    return text


def job_name(text: str) -> str:
    """A name that Kubernetes takes for a job."""
    if not _LABEL.fullmatch(text):
        near = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:63].rstrip("-")
        hint = f"did you mean {near}?" if _LABEL.fullmatch(near) else "one like mnist-2"
        raise UsageError(f"{text!r} is no name: small letters, digits and -, 63 at most", hint=hint)
    return text


def duration(text: str) -> float:
    """A time, in seconds: ``90``, ``90s``, ``1h30m``."""
    from danlu.util.human import parse_duration

    try:
        return parse_duration(text)
    except ValueError:
        raise UsageError(f"{text!r} is no time", hint="write it like 90s, 1h30m or 2d") from None


def pattern(text: str) -> str:
    """A regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(f"{text!r} is no regular expression: {error}") from None
    return text


def sweep(text: str) -> str:
    """A name and its values, as ``danlu train --sweep`` takes them."""
    from danlu.commands.sweepspace import parse_axis

    parse_axis(text)
    return text


def nearest(text: str, known: Sequence[str]) -> str:
    """The known word that ``text`` may be meant for; empty for none."""
    near = get_close_matches(text, known, 1, 0.75)
    return near[0] if near else ""
