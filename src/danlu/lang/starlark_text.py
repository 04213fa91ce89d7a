"""Read the texts in which the Starlark interpreter tells its call stack and its errors.

``files`` are the names of the files by the identity (``<0>``) that the interpreter knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from danlu.lang.calls import Frame
from danlu.lang.preamble import full_name

__all__ = ["read_error", "read_stack"]

_STACK_FRAME = re.compile(r"^  \* <(\d+)>:(\d+), in ", re.MULTILINE)
_PLACE = re.compile(r"^ *--> <(\w+)>:(\d+):(\d+)$", re.MULTILINE)
_UNDERLINE = re.compile(r"^ *\| {1,1}[^\n^]*?(\^+)$", re.MULTILINE)
_PREAMBLE_FRAME = re.compile(r"^  \* <preamble>:\d+, in (\w+)$", re.MULTILINE)
_UNFIT = re.compile(
    r"StarlarkError: (?:Operation `serde::serialize` not supported on type `(\w+)`"
    r"|Maximum depth|Cycle detected)"
)


def read_stack(stack: str, files: Mapping[str, str]) -> tuple[Frame, ...]:
    """Return the frames of the files, outermost first, of a stack that the interpreter tells."""
    return tuple(
        Frame(files[f"<{number}>"], int(line))
        for number, line in _STACK_FRAME.findall(stack)
        if f"<{number}>" in files
    )


def read_error(text: str, files: Mapping[str, str]) -> tuple[str, tuple[Frame, ...]]:
    """Return the message of an error and its frames, of which the last is the place itself."""
    head, _, rest = _split_error(text)
    frames = read_stack(head, files)
    message = rest
    # The last one: a message of the user's own may hold the same words.
    place = next(reversed(list(_PLACE.finditer(rest))), None)
    if place is not None:
        message = rest[: place.start()]
        identity = f"<{place[1]}>"
        if identity in files:
            line, column = int(place[2]), int(place[3])
            under = _UNDERLINE.search(rest, place.end())
            end = column + len(under[1]) if under is not None else 0
            if frames and (frames[-1].file, frames[-1].line) == (files[identity], line):
                frames = frames[:-1]
            frames += (Frame(files[identity], line, column, end),)
    unfit = _UNFIT.match(message)
    function = _PREAMBLE_FRAME.search(head)
    if unfit is not None and function is not None:
        what = f"a {unfit[1]} cannot be an argument" if unfit[1] else "a value without end"
        message = f"{full_name(function[1])}(): {what}"
    return message.strip(), frames


def _split_error(text: str) -> tuple[str, str, str]:
    """Part the traceback from the message; a message may hold the same words itself."""
    if text.startswith("error: "):
        return "", "error: ", text[len("error: ") :]
    if text.startswith("Traceback "):
        return text.partition("\nerror: ")
    return "", "", text
