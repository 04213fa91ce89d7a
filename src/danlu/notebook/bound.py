"""What a cell's text sets, so that a name that cannot be returned is known before a job runs."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from danlu.errors import UsageError

if TYPE_CHECKING:
    from danlu.notebook.types import CellOrder

__all__ = ["check_options", "check_returns"]

#: What may set a variable that no text names.
_HIDDEN = {"exec", "globals", "locals", "setattr", "vars"}


def check_options(sweep: Sequence[str]) -> None:
    """Raise :class:`UsageError` for a range of a sweep whose name cannot be a variable."""
    for text in sweep:
        name = text.partition("=")[0].strip()
        if not _variable(name).isidentifier() or keyword.iskeyword(_variable(name)):
            raise UsageError(
                f"{name!r} cannot be a variable of the cell",
                hint="name the range as the cell names it: --sweep lr=0.1,0.01",
            )


def _variable(name: str) -> str:
    return re.sub(r"\W", "_", name)


def check_returns(tree: ast.Module, order: CellOrder) -> None:
    """Raise :class:`UsageError` for a variable to be returned that the cell never sets."""
    known = {*order.send, *(_variable(text.partition("=")[0].strip()) for text in order.sweep)}
    for node in ast.walk(tree):
        if _is_hidden(node):
            return
        known.update(_names(node))
    for name in order.returns:
        if name not in known:
            near = get_close_matches(name, sorted(known), 1)
            hint = f"did you mean {near[0]}?" if near else "set it in the cell, or send it"
            raise UsageError(f"the cell sets no variable {name} to return", hint=hint)


def _is_hidden(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom():
            return any(one.name == "*" for one in node.names)
        case ast.Name(id=name):
            return name in _HIDDEN
    return False


def _names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.Import() | ast.ImportFrom():
            yield from (one.asname or one.name.partition(".")[0] for one in node.names)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
