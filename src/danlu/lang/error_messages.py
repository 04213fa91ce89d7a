"""Translate the failures of the interpreters into errors with a location and a hint."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterable

from danlu.errors import BuildFileError, DanluError, Span, UsageError
from danlu.lang.functions import FUNCTIONS, NAMESPACES, list_short_names
from danlu.lang.functions.data import PATHS
from danlu.lang.protocol import CallFrame, EvaluationFailure, EvaluationLimits
from danlu.lang.source_files import SourceFiles, dotted_name, find_build_functions, find_definition
from danlu.util.suggest import find_nearest_name, suggest_name

_PYTHON_HINT = "build.envd is Starlark; write a build.py to use all of Python"
_BUILTINS = (
    "all", "any", "bool", "dict", "dir", "enumerate", "fail", "filter", "float", "getattr",
    "hasattr", "hash", "int", "json", "len", "list", "load", "map", "max", "min", "print",
    "range", "repr", "reversed", "sorted", "str", "struct", "tuple", "type", "zip",
)  # fmt: skip
_HINTS = {
    "while": "use for … in range(…)",
    "import": "use load() for a file of the project, include() for a git repository; "
    + _PYTHON_HINT,
    "from": "use load() for a file of the project, include() for a git repository; " + _PYTHON_HINT,
    "assert": "use: if not …: fail(…)",
    "raise": "use fail(…)",
}


def missing_file_error(file: str) -> UsageError:
    """Return the error for a build file that does not exist."""
    return UsageError(
        f"build file '{file}' not found",
        hint="run `danlu init` to create one, or choose another with -f",
    )


def missing_function_error(file: str, function: str, sources: SourceFiles) -> DanluError:
    """Return the error for a build function that the file does not define."""
    names = find_build_functions(sources.text(file))
    tree = sources.tree(file)
    for node in tree.body if tree is not None else ():
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return sources.make_error(
                f"'{function}' cannot be built: it requires arguments",
                sources.span(file, node.lineno, node.col_offset + 5),
                hint=f"build functions of {file}: {', '.join(names)}" if names else "",
            )
    near = find_nearest_name(function, names)
    hint = "define one: def build(): …"
    if names:
        hint = f"did you mean '{near}'? " if near else ""
        hint += f"{file} has: {', '.join(names)}"
    return BuildFileError(
        f"no build function '{function}' in {file}", hint=hint, span=Span(file, 1)
    )


def translate_failure(
    failure: EvaluationFailure,
    *,
    file: str,
    function: str,
    sources: SourceFiles,
    limits: EvaluationLimits,
) -> DanluError:
    """Return the error for a failure that an interpreter reported."""
    if failure.kind == "nofile":
        return missing_file_error(file)
    if failure.kind == "missing":
        return missing_function_error(file, failure.message or function, sources)
    frames = failure.frames
    span = _frame_span(frames[-1], sources) if frames else find_definition(file, function, sources)
    message, hint = failure.message, failure.hint
    if failure.kind == "time":
        message = f"the build file did not finish within {limits.seconds:g} s"
        hint = "it may be in an endless loop" + (" here" if frames else "")
    elif failure.kind == "memory":
        message = f"the build file needs more than {limits.memory >> 20} MiB of memory"
        hint = "a value in it may grow without end"
    elif failure.kind == "died":
        message = "the interpreter crashed while evaluating the build file"
        hint = "an expression may need too much memory, or be nested too deeply"
    elif failure.kind == "raw":
        if message.startswith("Parse error: "):
            return _syntax_error(message, span, sources)
        message, hint = _translate_message(message, frames, sources)
    else:
        span = _load_span(span, sources)
    return sources.make_error(message, span, hint=hint, callers=frames[:-1])


def _frame_span(frame: CallFrame, sources: SourceFiles) -> Span:
    if frame.column:
        return sources.span(frame.file, frame.line, frame.column, frame.end_column)
    return sources.frame_span(frame)


def _load_span(span: Span, sources: SourceFiles) -> Span:
    """Return the span of the path in a ``load()``, if ``span`` is that of the whole statement."""
    for node in _nodes_at(span, sources):
        if isinstance(node, ast.Call) and dotted_name(node.func) == "load" and node.args:
            return sources.node_span(span.file, node.args[0])
    return span


def _nodes_at(span: Span, sources: SourceFiles) -> Iterable[ast.expr]:
    """Return the expressions that start at ``span``, the widest first."""
    tree = sources.tree(span.file)
    nodes = [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.expr)
        and node.lineno == span.line
        and sources.node_span(span.file, node).column == span.column
    ]
    return sorted(nodes, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))[::-1]


# -- syntax ---------------------------------------------------------------------------------------


def _syntax_error(message: str, span: Span, sources: SourceFiles) -> BuildFileError:
    message = message.removeprefix("Parse error: ")
    reserved = re.match(r"cannot use reserved keyword `(\w+)`", message)
    if reserved is not None:
        hint = _HINTS.get(reserved[1], _PYTHON_HINT)
        return sources.make_error(
            f"'{reserved[1]}' is not supported in build.envd", span, hint=hint
        )
    better = _parse_with_python(span.file, sources)
    if better is not None:
        return better
    unexpected = re.match(r"unexpected (.+?) here, expected one of", message, re.DOTALL)
    if unexpected is not None:
        message = f"unexpected {unexpected[1]}".replace("symbol ", "")
    is_python = message.startswith("invalid input `@`") or message == "unexpected '**'"
    hint = _PYTHON_HINT if is_python else ""
    return sources.make_error(f"syntax error: {message}", span, hint=hint)


def _parse_with_python(file: str, sources: SourceFiles) -> BuildFileError | None:
    """Return Python's error for the same file; its message and location are often better."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(sources.text(file), file)
    except SyntaxError as error:
        line = error.lineno or 1
        column = error.offset or 0
        end = error.end_offset or 0 if error.end_lineno == line else 0
        span = sources.span(file, line, column, end)
        return sources.make_error(f"syntax error: {error.msg}", span)
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


# -- what happens while it runs -------------------------------------------------------------------


def _translate_message(
    message: str, frames: tuple[CallFrame, ...], sources: SourceFiles
) -> tuple[str, str]:
    for pattern, translate in _TRANSLATIONS:
        match = re.match(pattern, message, re.DOTALL)
        if match is not None:
            return translate(match, frames, sources)
    return message, ""


MessageTranslator = Callable[[re.Match[str], tuple[CallFrame, ...], SourceFiles], tuple[str, str]]


def _explain_unknown_name(
    match: re.Match[str], frames: tuple[CallFrame, ...], sources: SourceFiles
) -> tuple[str, str]:
    name = match[1]
    known = {function for function in FUNCTIONS if "." not in function}
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
    homes = [function for function in FUNCTIONS if function.endswith(f".{name}")]
    hint = f"did you mean '{homes[0]}'?" if homes else suggest_name(name, known)
    return f"name '{name}' is not defined", hint


def explain_unknown_attribute(owner: str, name: str) -> tuple[str, str]:
    """Return the message and hint for an attribute that a namespace does not have."""
    if owner == "data.path":
        return f"data.path has no attribute '{name}'", suggest_name(name, PATHS, what="it has")
    names = list_short_names(owner)
    if owner == "data":
        names.append("path")
    near = find_nearest_name(name, names)
    elsewhere = [function for function in FUNCTIONS if function.endswith(f".{name}")]
    if owner == "install" and name in ("pip", "pip_packages", "requirements"):
        elsewhere = ["install.python_packages"]
    if elsewhere:
        hint = f"did you mean '{elsewhere[0]}'?"
    elif near:
        hint = f"did you mean '{owner}.{near}'?"
    else:
        hint = f"it has: {', '.join(sorted(names))}"
    return f"{owner} has no function '{name}'", hint


def _explain_missing_attribute(
    match: re.Match[str], frames: tuple[CallFrame, ...], sources: SourceFiles
) -> tuple[str, str]:
    kind, name, near = match[1], match[2], match[3]
    owner = _find_owner(name, frames, sources)
    if kind == "struct" and (owner in NAMESPACES or owner == "data.path"):
        return explain_unknown_attribute(owner, name)
    hint = f"did you mean '{near}'?" if near else ""
    what = f"'{owner}'" if owner and kind == "struct" else f"a value of type {kind}"
    return f"{what} has no attribute '{name}'", hint


def _find_owner(name: str, frames: tuple[CallFrame, ...], sources: SourceFiles) -> str:
    for node in _nodes_at(_frame_span(frames[-1], sources), sources) if frames else ():
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and inner.attr == name:
                return dotted_name(inner.value)
    return ""


def _fixed_message(message: str, hint: str = "") -> MessageTranslator:
    return lambda match, frames, sources: (match.expand(message), hint)


_TRANSLATIONS: tuple[tuple[str, MessageTranslator], ...] = (
    (r"Variable `(\w+)` not found", _explain_unknown_name),
    (
        r"Object of type `(\w+)` has no attribute `(\w+)`(?:, did you mean `(\w+)`)?",
        _explain_missing_attribute,
    ),
    (r"fail: (.*)", _fixed_message(r"\1")),
    (
        r"Starlark call stack overflow",
        _fixed_message("maximum recursion depth exceeded"),
    ),
    (
        r"Missing parameter `(\w+)` for call to `?(?:<\d+>\.)?(\w+)`?",
        _fixed_message(r"\2() is missing its argument '\1'"),
    ),
    (
        r"Found `(.+)` extra named parameter\(s\) for call to (?:<\d+>\.)?(\w+)",
        _fixed_message(r"\2() has no argument '\1'"),
    ),
    (
        r"Found (\d+) extra positional argument\(s\) for call to (?:<\d+>\.)?(\w+)",
        _fixed_message(r"\2() got \1 more positional arguments than it takes"),
    ),
    (
        r"Module has no symbol `(\w+)`(?:.*)",
        _fixed_message(r"load(): the file does not define '\1'"),
    ),
    (r"Floor division by zero.*", _fixed_message("division by zero")),
    (r"Key `(.*)` was not found", _fixed_message(r"key \1 not found")),
    (r"Index `(.*)` is out of bound", _fixed_message(r"index \1 is out of range")),
    (
        r"Local variable `(\w+)` referenced before assignment",
        _fixed_message(r"local variable '\1' is used before assignment"),
    ),
)
