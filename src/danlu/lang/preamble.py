"""The Starlark text that gives every file the functions of the table."""

from __future__ import annotations

from functools import cache

from danlu.lang.table import NAMESPACES, PATHS, TABLE

__all__ = ["full_name", "load_text", "preamble_text"]


@cache
def preamble_text() -> str:
    """Return functions that report their call; ``_call`` and the like are Python's."""
    lines = [
        "def print(*args, sep=' '):",
        "    _print(sep.join([str(arg) for arg in args]))",
        "def include(*args, **kwargs):",
        "    return _included[_include(call_stack(strip_frames=1), args, kwargs)]",
    ]
    for name in TABLE:
        if name != "include":
            lines += [
                f"def {_inner(name)}(*args, **kwargs):",
                f'    return _call("{name}", call_stack(strip_frames=1), args, kwargs)',
            ]
    paths = ", ".join(f'{name}="{path}"' for name, path in PATHS.items())
    for namespace in NAMESPACES:
        fields = [
            f"{function.short_name}={_inner(function.name)}"
            for function in TABLE.values()
            if function.namespace == namespace
        ]
        if namespace == "data":
            fields.append(f"path=struct({paths})")
        lines.append(f"{namespace} = struct({', '.join(fields)})")
    return "\n".join(lines) + "\n"


def _inner(name: str) -> str:
    return "_" + name.replace(".", "_") if "." in name else name


def full_name(inner: str) -> str:
    """Return the table's name of one of the preamble's functions."""
    return next((name for name in TABLE if _inner(name) == inner), inner)


@cache
def load_text() -> str:
    """Return the statement that brings the preamble's names into a file."""
    plain = [name for name in TABLE if "." not in name]
    names = ", ".join(f'"{name}"' for name in [*plain, *NAMESPACES, "print"])
    return f'load("x", {names})'
