"""Texts for and from the Starlark interpreter: the preamble, call stacks and error messages.

Files are known to the interpreter by an identity such as ``<0>``; ``files`` maps those to the names
that the user knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from danlu.lang.functions import FUNCTIONS, NAMESPACES
from danlu.lang.functions.data import PATHS
from danlu.lang.protocol import CallFrame

_STACK_FRAME = re.compile(r"^  \* <(\d+)>:(\d+), in ", re.MULTILINE)
_LOCATION = re.compile(r"^ *--> <(\w+)>:(\d+):(\d+)$", re.MULTILINE)
_UNDERLINE = re.compile(r"^ *\| {1,1}[^\n^]*?(\^+)$", re.MULTILINE)
_PREAMBLE_FRAME = re.compile(r"^  \* <preamble>:\d+, in (\w+)$", re.MULTILINE)
_NOT_SERIALIZABLE = re.compile(
    r"StarlarkError: (?:Operation `serde::serialize` not supported on type `(\w+)`"
    r"|Maximum depth|Cycle detected)"
)


@cache
def preamble_text() -> str:
    """Return Starlark functions that report their calls; ``_call`` and the like are Python's."""
    lines = [
        "def print(*args, sep=' '):",
        "    _print(sep.join([str(arg) for arg in args]))",
        "def include(*args, **kwargs):",
        "    return _included[_include(call_stack(strip_frames=1), args, kwargs)]",
    ]
    for name in FUNCTIONS:
        if name != "include":
            lines.append(f"def {_inner_name(name)}(*args, **kwargs):")
            if FUNCTIONS[name].takes_functions:
                # The interpreter passes no functions to Python: pass their full names instead.
                lines.append(
                    "    given = {k: str(v) for k, v in kwargs.items() if type(v) == 'function'}"
                )
                lines.append("    kwargs = {k: v for k, v in kwargs.items() if k not in given}")
            else:
                lines.append("    given = {}")
            call = f'_call("{name}", call_stack(strip_frames=1), args, kwargs, given)'
            lines.append(f"    return {call}")
    paths = ", ".join(f'{name}="{path}"' for name, path in PATHS.items())
    for namespace in NAMESPACES:
        fields = [
            f"{function.short_name}={_inner_name(function.name)}"
            for function in FUNCTIONS.values()
            if function.namespace == namespace
        ]
        if namespace == "data":
            fields.append(f"path=struct({paths})")
        lines.append(f"{namespace} = struct({', '.join(fields)})")
    return "\n".join(lines) + "\n"


@cache
def load_text() -> str:
    """Return the statement that brings the preamble's names into a file."""
    plain = [name for name in FUNCTIONS if "." not in name]
    names = ", ".join(f'"{name}"' for name in [*plain, *NAMESPACES, "print"])
    return f'load("x", {names})'


def _inner_name(name: str) -> str:
    """Return the name of a build function in the preamble: ``_install_python``."""
    return "_" + name.replace(".", "_") if "." in name else name


def _resolve_inner_name(inner: str) -> str:
    return next((name for name in FUNCTIONS if _inner_name(name) == inner), inner)


def read_stack(stack: str, files: Mapping[str, str]) -> tuple[CallFrame, ...]:
    """Return the frames of a call stack that are in the user's files, outermost first."""
    return tuple(
        CallFrame(files[f"<{number}>"], int(line))
        for number, line in _STACK_FRAME.findall(stack)
        if f"<{number}>" in files
    )


def read_error(text: str, files: Mapping[str, str]) -> tuple[str, tuple[CallFrame, ...]]:
    """Return the message of an error and its frames, the last of which is the place itself."""
    head, _, rest = _split_error(text)
    frames = read_stack(head, files)
    message = rest
    # The last one: a message of the user's own may contain the same text.
    location = next(reversed(list(_LOCATION.finditer(rest))), None)
    if location is not None:
        message = rest[: location.start()]
        identity = f"<{location[1]}>"
        if identity in files:
            line, column = int(location[2]), int(location[3])
            underline = _UNDERLINE.search(rest, location.end())
            end = column + len(underline[1]) if underline is not None else 0
            if frames and (frames[-1].file, frames[-1].line) == (files[identity], line):
                frames = frames[:-1]
            frames += (CallFrame(files[identity], line, column, end),)
    not_serializable = _NOT_SERIALIZABLE.match(message)
    function = _PREAMBLE_FRAME.search(head)
    if not_serializable is not None and function is not None:
        kind = not_serializable[1]
        what = f"a {kind} cannot be an argument" if kind else "a value contains itself"
        message = f"{_resolve_inner_name(function[1])}(): {what}"
    return message.strip(), frames


def _split_error(text: str) -> tuple[str, str, str]:
    """Separate the traceback from the message, which may itself contain ``error: ``."""
    if text.startswith("error: "):
        return "", "error: ", text[len("error: ") :]
    if text.startswith("Traceback "):
        return text.partition("\nerror: ")
    return "", "", text
