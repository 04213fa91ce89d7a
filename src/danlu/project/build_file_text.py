"""Edit build files as text: formatting and comments stay.

Starlark's functions are parsed as Python's. After an edit the syntax tree must be the expected one:
otherwise the file stays the same.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from danlu.errors import UsageError
from danlu.project.string_list import locate_node
from danlu.util.safe_paths import ProjectTree, write_beneath

#: Finds the number of statements of a function before which lines are inserted.
FindPlace = Callable[[ast.FunctionDef], int]
#: A package with an exact version of Python's or conda's.
_PIN = re.compile(r"([A-Za-z0-9_.-]+)(==?)[A-Za-z0-9_.!+]+")


def append_lines(build_file: Path, function: str, lines: tuple[str, ...]) -> None:
    """Add the statements that a function does not have to its end.

    Versions in it that contradict those of the statements are replaced.

    Raises :class:`UsageError` if it has no such function, or no place for statements in it.
    """
    with ProjectTree(build_file.parent) as tree:
        text = tree.read_text(build_file.name)
    name = function.partition("(")[0]
    text = _replace_versions(text, parse_function(text, build_file.name, name), lines)
    changed = insert_lines(text, build_file.name, name, lines, find_place=_find_end)
    write_beneath(build_file.parent, build_file.name, changed.encode())


def insert_lines(
    text: str, file: str, function: str, lines: tuple[str, ...], *, find_place: FindPlace
) -> str:
    """Return the text of ``file`` with the statements that a function does not have.

    Raises :class:`UsageError` if it has no such function, or no place for statements in it.
    """
    before = parse_function(text, file, function)
    expected = [ast.dump(node) for node in before.body]
    statements = {line: ast.dump(ast.parse(line).body[0]) for line in lines}
    added = {line: dumped for line, dumped in statements.items() if dumped not in expected}
    place = find_place(before)
    changed = _insert_rows(text, before, place, tuple(added))
    expected[place:place] = added.values()
    # A function on one line, for example, has no place for them.
    if _dump_statements(changed, function) != expected:
        raise UsageError(
            f"cannot add lines to function {function} of {file}",
            hint=f"add by hand: {'; '.join(added)}",
        )
    return changed


def parse_function(text: str, file: str, name: str) -> ast.FunctionDef:
    """Return the syntax tree of a function; raise :class:`UsageError` if it does not exist."""
    try:
        function = _find_function(ast.parse(text), name)
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"cannot read {file}: {reason}") from error
    if function is None:
        raise UsageError(f"{file} has no function {name} to add lines to")
    return function


def find_calls(node: ast.AST, name: str) -> Iterator[ast.Call]:
    """Yield the calls of a build function, such as ``install.python_packages``, below ``node``."""
    for below in ast.walk(node):
        if isinstance(below, ast.Call) and ast.unparse(below.func) == name:
            yield below


def own_calls(function: ast.FunctionDef, name: str) -> Iterator[ast.Call]:
    """Yield the calls that are statements of the function itself: each runs once."""
    for statement in function.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func) == name:
            yield call


def find_argument(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Return the value of an argument, given by name or at a position."""
    if position is not None and len(call.args) > position:
        return call.args[position]
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def find_place_of_call(function: ast.FunctionDef) -> int:
    """Return the place behind the last ``install`` call, else behind the base, else the end."""
    for prefixes in (("install.",), ("base",)):
        for place in range(len(function.body), 0, -1):
            statement = function.body[place - 1]
            call = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(call, ast.Call) and ast.unparse(call.func).startswith(prefixes):
                return place
    return _find_end(function)


def replace_node(text: str, node: ast.expr, replacement: str) -> str:
    """Return ``text`` with another text for a node of its syntax tree."""
    begin, end = locate_node(text, node)
    return text[:begin] + replacement + text[end:]


def _replace_versions(text: str, function: ast.FunctionDef, lines: tuple[str, ...]) -> str:
    """Replace exact versions in the function's packages by those of ``lines``."""
    wanted = {
        (called, match[1], match[2]): match[0]
        for line in lines
        for called, _, match in _list_pins(ast.parse(line))
    }
    # From the end, so that the places of the others stay valid.
    pins = sorted(_list_pins(function), key=lambda pin: (-pin[1].lineno, -pin[1].col_offset))
    for called, node, match in pins:
        pin = wanted.get((called, match[1], match[2]))
        if pin is not None and pin != node.value:
            text = replace_node(text, node, f'"{pin}"')
    return text


def _list_pins(tree: ast.AST) -> Iterator[tuple[str, ast.Constant, re.Match[str]]]:
    """Yield the name of the function, the string and its parts for each exact version."""
    for called in ("install.python_packages", "install.conda_packages"):
        for call in find_calls(tree, called):
            for node in ast.walk(call):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    match = _PIN.fullmatch(node.value)
                    if match:
                        yield called, node, match


def remove_statement(text: str, function: ast.FunctionDef, call: ast.Call) -> str:
    """Return ``text`` without the lines of a call; unchanged if it shares them with others."""
    assert call.end_lineno is not None
    rows = text.split("\n")
    changed = "\n".join(rows[: call.lineno - 1] + rows[call.end_lineno :])
    expected = [
        ast.dump(node)
        for node in function.body
        if (node.lineno, node.col_offset) != (call.lineno, call.col_offset)
    ]
    is_expected = bool(expected) and _dump_statements(changed, function.name) == expected
    return changed if is_expected else text


def _find_function(module: ast.Module, name: str) -> ast.FunctionDef | None:
    found = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    return next((node for node in reversed(found) if node.name == name), None)


def _find_end(function: ast.FunctionDef) -> int:
    """Return the number of statements before the ``return`` at the end, or of all."""
    return len(function.body) - isinstance(function.body[-1], ast.Return)


def _insert_rows(text: str, function: ast.FunctionDef, place: int, lines: tuple[str, ...]) -> str:
    """Insert lines behind the first ``place`` statements of a function."""
    newline = "\r\n" if "\r\n" in text else "\n"
    # Python's parser counts these lines; str.splitlines() also splits at form feeds in them.
    rows = text.removesuffix(newline).split(newline)
    above = function.body[place - 1].end_lineno if place else function.body[0].lineno - 1
    end = len(rows) if above is None else above
    first = rows[function.body[0].lineno - 1]
    indent = first[: len(first) - len(first.lstrip())]
    rows[end:end] = [f"{indent}{row}" for line in lines for row in line.split("\n")]
    return newline.join(rows) + newline


def _dump_statements(text: str, name: str) -> list[str]:
    """Return the statements of a function; empty if the text is invalid."""
    try:
        function = _find_function(ast.parse(text), name)
    except SyntaxError:
        return []
    return [] if function is None else [ast.dump(node) for node in function.body]
