"""Check a cell's code before a job is submitted: its syntax, and the variables it returns."""

from __future__ import annotations

import ast
import keyword
import re
import traceback
import warnings
from collections.abc import Iterator, Sequence

from danlu.errors import Span, UsageError
from danlu.notebook import options
from danlu.notebook.types import CellOptions
from danlu.util.suggest import did_you_mean

#: The file name of a cell's code in tracebacks.
CODE_NAME = "<cell>"

#: IPython syntax: ``%magic``, ``!command``, ``?name``, ``files = !ls``, ``name?``, ``name??``.
_IPYTHON_LINE = re.compile(
    r"[ \t\f]*(?:[%!?].*|[^=!<>]+=[ \t]*[!%].*|[\w.*\[\]'\"]+\?{1,2}[ \t]*)", re.DOTALL
)
_OPTION_LINE = re.compile(r"%{1,2}(?P<word>[^\W\d][\w-]*)[ \t]*=?[ \t]*(?P<value>.*)", re.DOTALL)

#: Builtins that can set variables whose names are not in the code.
_DYNAMIC_BUILTINS = {"exec", "globals", "locals", "setattr", "vars"}


def check_code(code: str) -> None:
    """Raise :class:`UsageError` if a cell's code is not valid Python.

    A SyntaxError would not do: IPython shows it below a traceback of our own code.
    """
    try:
        parse_code(code)
    except SyntaxError as error:
        details = "".join(traceback.format_exception_only(error)).rstrip("\n").split("\n")
        line = error.lineno or 1
        raise UsageError(
            f"invalid Python on line {line} of the cell",
            details=tuple(details),
            span=Span(CODE_NAME, line, error.offset or 1),
        ) from None


def parse_code(code: str, *, name: str = CODE_NAME) -> ast.Module:
    """Parse the code of a cell without running it.

    Raises :class:`SyntaxError` with the cell's own line numbers: for invalid Python, for IPython
    syntax (``!pip``, ``%matplotlib``, ``name?``), for statements not allowed at the top level of a
    program (``return``, ``await``), and for empty code.
    """
    try:
        tree = _compile_code(code, name)
    except SyntaxError as error:
        number = error.lineno or 0
        text = next(iter(_split_lines(code)[max(number - 1, 0) :]), "")
        if _IPYTHON_LINE.fullmatch(text):
            raise _ipython_syntax_error(number, text, name) from None
        if error.text is None and number:
            # The compiler, unlike the parser, reads the text from the file, and there is none.
            error.text = text
        raise
    if not tree.body:
        raise SyntaxError("the cell has options but no code to run", (name, 1, 1, ""))
    return tree


def _compile_code(code: str, name: str) -> ast.Module:
    if "\0" in code:
        raise _character_error(code, code.index("\0"), "null character", name)
    try:
        with warnings.catch_warnings():
            # The replicas' Python issues the same warnings.
            warnings.simplefilter("ignore")
            tree = ast.parse(code, name)
            compile(tree, name, "exec", dont_inherit=True)
    except UnicodeEncodeError as error:
        raise _character_error(code, error.start, "lone surrogate", name) from None
    except (RecursionError, MemoryError):
        raise SyntaxError("the code is nested too deeply", (name, 1, 1, "")) from None
    return tree


def _character_error(code: str, position: int, kind: str, name: str) -> SyntaxError:
    before = _split_lines(code[: position + 1])
    return SyntaxError(f"the code contains a {kind}", (name, len(before), len(before[-1]), None))


def _split_lines(code: str) -> list[str]:
    """Return the lines as Python counts them, without their ends."""
    return re.split(r"\r\n|\r|\n", code)


def _ipython_syntax_error(number: int, text: str, name: str) -> SyntaxError:
    hint = _suggest_alternative(text.strip())
    column = len(text) - len(text.lstrip()) + 1
    return SyntaxError(
        f"line {number} is IPython syntax, which replicas cannot run: {hint}",
        (name, number, column, text),
    )


def _suggest_alternative(text: str) -> str:
    """Return what to write instead of a line of IPython syntax."""
    match = _OPTION_LINE.fullmatch(text)
    option = options.find_option(match["word"]) if match else None
    if match is None or not (option or options.is_replica_type(match["word"])):
        return f"move `{text}` to a separate cell"
    word, value = match["word"], match["value"]
    if option is not None and not option.metavar:
        return f"write %{word}=true above the code, or --{word} after %%distributed"
    example = value or (option.examples[0] if option else "2")
    return f"write %{word}={example} above the code, or --{word} {example} after %%distributed"


# -- variables ------------------------------------------------------------------------------------


def check_sweep_names(sweep: Sequence[str]) -> None:
    """Raise :class:`UsageError` for a range of a sweep whose name is not a valid variable name."""
    for text in sweep:
        variable = _variable_name(text)
        if not variable.isidentifier() or keyword.iskeyword(variable):
            raise UsageError(
                f"invalid variable name {text.partition('=')[0].strip()!r}",
                hint="use the name of a variable of the cell: --sweep lr=0.1,0.01",
            )


def _variable_name(axis: str) -> str:
    """Return the variable that is set for a range of a sweep, ``NAME=VALUES``."""
    return re.sub(r"\W", "_", axis.partition("=")[0].strip())


def check_return_names(tree: ast.Module, cell: CellOptions) -> None:
    """Raise :class:`UsageError` for a variable to return that the cell never sets."""
    known = {*cell.send, *map(_variable_name, cell.sweep)}
    for node in ast.walk(tree):
        if _may_set_any_name(node):
            return
        known.update(_assigned_names(node))
    for name in cell.returns:
        if name not in known:
            hint = did_you_mean(name, known, otherwise="set it in the cell, or send it")
            raise UsageError(f"cannot return {name}: the cell never sets it", hint=hint)


def _may_set_any_name(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom():
            return any(alias.name == "*" for alias in node.names)
        case ast.Name(id=name):
            return name in _DYNAMIC_BUILTINS
    return False


def _assigned_names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.Import() | ast.ImportFrom():
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
