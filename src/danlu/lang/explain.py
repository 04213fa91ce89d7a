"""Say in our words, with place and nearest name, why the evaluation of a file stopped."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable

from danlu.errors import BuildFileError, DanluError, Span, UsageError
from danlu.lang.calls import Frame
from danlu.lang.finding import nearest, suggestion
from danlu.lang.limits import Limits
from danlu.lang.outcome import Failure
from danlu.lang.sources import Sources, build_functions, definition, dotted
from danlu.lang.table import NAMESPACES, PATHS, TABLE, names_in

__all__ = ["explain", "missing_function", "no_file", "unknown_attribute"]

_ENVD = "it is Starlark; write a build.py to use all of Python"
_BUILTINS = (
    "all", "any", "bool", "dict", "dir", "enumerate", "fail", "filter", "float", "getattr",
    "hasattr", "hash", "int", "json", "len", "list", "load", "map", "max", "min", "print",
    "range", "repr", "reversed", "sorted", "str", "struct", "tuple", "type", "zip",
)  # fmt: skip
_HINTS = {
    "while": "use for … in range(…)",
    "import": "use load() for a file of the project, include() for a repository; " + _ENVD,
    "from": "use load() for a file of the project, include() for a repository; " + _ENVD,
    "assert": "use: if not …: fail(…)",
    "raise": "use fail(…)",
}


def no_file(file: str) -> UsageError:
    """Return the error for a build file that is not there."""
    return UsageError(
        f"there is no build file '{file}'", hint="`danlu init` writes one; -f names another"
    )


def missing_function(file: str, function: str, sources: Sources) -> DanluError:
    """Return the error for a build function that is not in the file."""
    names = build_functions(sources.text(file))
    tree = sources.tree(file)
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return sources.error(
                f"'{function}' takes arguments, a build function takes none",
                sources.span(file, node.lineno, node.col_offset + 5),
                hint=f"build functions of {file}: {', '.join(names)}" if names else "",
            )
    near = nearest(function, names)
    hint = "a build function is written: def build(): …"
    if names:
        hint = f"did you mean '{near}'? " if near else ""
        hint += f"{file} has: {', '.join(names)}"
    return BuildFileError(
        f"{file} has no build function '{function}'", hint=hint, span=Span(file, 1)
    )


def explain(
    failure: Failure, *, file: str, function: str, sources: Sources, limits: Limits
) -> DanluError:
    """Return the error for a failure of the interpreter's."""
    if failure.kind == "nofile":
        return no_file(file)
    if failure.kind == "missing":
        return missing_function(file, function, sources)
    frames = failure.frames
    span = _span(frames[-1], sources) if frames else definition(file, function, sources)
    message, hint = failure.message, failure.hint
    if failure.kind == "time":
        message = f"the build file did not end within {limits.seconds:g} s"
        hint = "it loops for ever here, or nearly so" if frames else "it loops for ever, or nearly"
    elif failure.kind == "memory":
        message = f"the build file needs more than {limits.memory >> 20} MiB of memory"
        hint = "something in it grows for ever"
    elif failure.kind == "died":
        message = "the interpreter broke down over the build file"
        hint = "something in it needs too much memory, or is nested too deep"
    elif failure.kind == "raw":
        if message.startswith("Parse error: "):
            return _syntax_error(message, span, sources)
        message, hint = _translate(message, frames, sources)
    else:
        span = _load_span(span, sources)
    return sources.error(message, span, hint=hint, callers=frames[:-1])


def _span(frame: Frame, sources: Sources) -> Span:
    if frame.column:
        return sources.span(frame.file, frame.line, frame.column, frame.end_column)
    return sources.frame_span(frame)


def _load_span(span: Span, sources: Sources) -> Span:
    """Return the path's own place in a ``load()``, where the span is the whole statement's."""
    for node in _nodes(span, sources):
        if isinstance(node, ast.Call) and dotted(node.func) == "load" and node.args:
            return sources.node_span(span.file, node.args[0])
    return span


def _nodes(span: Span, sources: Sources) -> Iterable[ast.expr]:
    """Return the expressions that begin at a place, the widest first."""
    tree = sources.tree(span.file)
    found = [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.expr)
        and node.lineno == span.line
        and sources.node_span(span.file, node).column == span.column
    ]
    return sorted(found, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))[::-1]


# -- syntax ---------------------------------------------------------------------------------------


def _syntax_error(message: str, span: Span, sources: Sources) -> BuildFileError:
    message = message.removeprefix("Parse error: ")
    reserved = re.match(r"cannot use reserved keyword `(\w+)`", message)
    if reserved is not None:
        hint = _HINTS.get(reserved[1], _ENVD)
        return sources.error(f"'{reserved[1]}' is not in the language", span, hint=hint)
    better = _python_says(span.file, sources)
    if better is not None:
        return better
    unexpected = re.match(r"unexpected (.+?) here, expected one of", message, re.DOTALL)
    if unexpected is not None:
        message = f"unexpected {unexpected[1]}".replace("symbol ", "")
    hint = _ENVD if message.startswith("invalid input `@`") or "symbol '**'" in message else ""
    return sources.error(f"syntax error: {message}", span, hint=hint)


def _python_says(file: str, sources: Sources) -> BuildFileError | None:
    """Return Python's error for the same file, whose words and place are often the better."""
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(sources.text(file), file)
    except SyntaxError as error:
        line = error.lineno or 1
        column = error.offset or 0
        end = error.end_offset or 0 if error.end_lineno == line else 0
        span = sources.span(file, line, column, end)
        return sources.error(f"syntax error: {error.msg}", span)
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


# -- what happens while it runs -------------------------------------------------------------------


def _translate(message: str, frames: tuple[Frame, ...], sources: Sources) -> tuple[str, str]:
    for pattern, say in _SAYINGS:
        match = re.match(pattern, message, re.DOTALL)
        if match is not None:
            return say(match, frames, sources)
    return message, ""


Saying = Callable[[re.Match[str], tuple[Frame, ...], Sources], tuple[str, str]]


def _unknown_name(
    match: re.Match[str], frames: tuple[Frame, ...], sources: Sources
) -> tuple[str, str]:
    name = match[1]
    known = {function for function in TABLE if "." not in function}
    known |= {*NAMESPACES, *_BUILTINS}
    tree = sources.tree(frames[-1].file) if frames else None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            known.add(node.id)
        elif isinstance(node, ast.FunctionDef):
            known.add(node.name)
        elif isinstance(node, ast.arg):
            known.add(node.arg)
    known.discard(name)
    homes = [function for function in TABLE if function.endswith(f".{name}")]
    hint = f"did you mean '{homes[0]}'?" if homes else suggestion(name, known)
    return f"there is nothing called '{name}'", hint


def unknown_attribute(owner: str, name: str) -> tuple[str, str]:
    """Return message and hint for an attribute that a namespace of the language lacks."""
    if owner == "data.path":
        return f"data.path has no '{name}'", suggestion(name, PATHS, what="it has")
    names = names_in(owner)
    if owner == "data":
        names.append("path")
    near = nearest(name, names)
    elsewhere = [function for function in TABLE if function.endswith(f".{name}")]
    if elsewhere:
        hint = f"did you mean '{elsewhere[0]}'?"
    elif near:
        hint = f"did you mean '{owner}.{near}'?"
    else:
        hint = f"it has: {', '.join(sorted(names))}"
    return f"{owner} has no function '{name}'", hint


def _no_attribute(
    match: re.Match[str], frames: tuple[Frame, ...], sources: Sources
) -> tuple[str, str]:
    kind, name, near = match[1], match[2], match[3]
    owner = _owner(name, frames, sources)
    if kind == "struct" and (owner in NAMESPACES or owner == "data.path"):
        return unknown_attribute(owner, name)
    hint = f"did you mean '{near}'?" if near else ""
    what = f"'{owner}'" if owner and kind == "struct" else f"a value of type {kind}"
    return f"{what} has no '{name}'", hint


def _owner(name: str, frames: tuple[Frame, ...], sources: Sources) -> str:
    for node in _nodes(_span(frames[-1], sources), sources) if frames else ():
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and inner.attr == name:
                return dotted(inner.value)
    return ""


def _said(message: str, hint: str = "") -> Saying:
    return lambda match, frames, sources: (match.expand(message), hint)


_SAYINGS: tuple[tuple[str, Saying], ...] = (
    (r"Variable `(\w+)` not found", _unknown_name),
    (
        r"Object of type `(\w+)` has no attribute `(\w+)`(?:, did you mean `(\w+)`)?",
        _no_attribute,
    ),
    (r"fail: (.*)", _said(r"\1")),
    (r"Starlark call stack overflow", _said("functions call each other for ever, or nearly so")),
    (
        r"Missing parameter `(\w+)` for call to `?(?:<\d+>\.)?(\w+)`?",
        _said(r"\2() needs its argument '\1'"),
    ),
    (
        r"Found `(.+)` extra named parameter\(s\) for call to (?:<\d+>\.)?(\w+)",
        _said(r"\2() has no argument '\1'"),
    ),
    (
        r"Found (\d+) extra positional argument\(s\) for call to (?:<\d+>\.)?(\w+)",
        _said(r"\2() is given too many arguments: \1 too many"),
    ),
    (r"Module has no symbol `(\w+)`(?:.*)", _said(r"load(): the file has no '\1'")),
    (r"Floor division by zero.*", _said("division by zero")),
    (r"Key `(.*)` was not found", _said(r"there is no key \1")),
    (r"Index `(.*)` is out of bound", _said(r"index \1 is out of range")),
    (
        r"Local variable `(\w+)` referenced before assignment",
        _said(r"'\1' is used before it has a value"),
    ),
)
