"""What a program's text imports: names of modules, found without running anything."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

__all__ = ["imported", "parsed"]

_BY_NAME = ("import_module", "__import__")


def parsed(source: bytes) -> ast.Module | None:
    """The tree of a file; None where it is no Python of this version."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def imported(tree: ast.AST, *, package: str = "") -> Iterator[str]:
    """Every module that is imported anywhere in a text, also below ``if``, ``try`` and ``def``.

    Names are absolute and dotted; of ``from a import b`` both ``a`` and ``a.b``, which may be a
    module. ``package`` is the one that relative imports begin at; there may be repetitions.
    ``importlib.import_module("a")`` counts where its name is written there.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (one.name for one in node.names)
            case ast.ImportFrom():
                yield from _from(node, package)
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)):
                if called in _BY_NAME:
                    yield from _by_name(node, package)


def _from(node: ast.ImportFrom, package: str) -> Iterator[str]:
    base = _absolute(node.module or "", node.level, package)
    if base:
        yield base
        yield from (f"{base}.{one.name}" for one in node.names if one.name != "*")


def _by_name(node: ast.Call, package: str) -> Iterator[str]:
    match node.args:
        case [ast.Constant(value=str(name)), *_] if name:
            plain = name.lstrip(".")
            base = _absolute(plain, len(name) - len(plain), package)
            if base:
                yield base


def _absolute(name: str, level: int, package: str) -> str:
    """A name that begins with ``level`` dots in ``package``; empty where it points outside."""
    if not level:
        return name
    parents = package.split(".") if package else []
    kept = parents[: len(parents) - level + 1]
    if level > len(parents):
        return ""
    return ".".join([*kept, *([name] if name else [])])
