"""Whether the code of a cell is Python, before anything is submitted."""

from __future__ import annotations

import ast
import re
import warnings

from danlu.notebook import keys
from danlu.notebook.lines import Line, lines_of

__all__ = ["NAME", "check"]

#: What the cell's code is called where a file is named.
NAME = "<cell>"

_ASKING = re.compile(r"[ \t\f]*[%\w.*\[\]'\"]+\?{1,2}[ \t]*")
_KEY = re.compile(r"%{1,2}(?P<word>[^\W\d][\w-]*)[ \t]*=?[ \t]*(?P<value>.*)", re.DOTALL)


def check(code: str, *, name: str = NAME) -> ast.Module:
    """The code of a cell, parsed; none of it runs.

    Raises :class:`SyntaxError` with the cell's own lines and ``name`` as the file: for what is no
    Python, for what only IPython understands (``!pip``, ``%matplotlib``, ``name?``), for what a
    program may not have at its top (``return``, ``await``), and where there is no code at all.
    """
    try:
        tree = _parsed(code, name)
    except SyntaxError as error:
        lines = lines_of(code)
        foreign = next(filter(_is_foreign, lines), None)
        if foreign is not None:
            raise _foreign(foreign, name) from None
        if error.text is None and error.lineno and error.lineno <= len(lines):
            # What is found after parsing comes without it, and no file has it.
            error.text = lines[error.lineno - 1].text
        raise
    if not tree.body:
        raise SyntaxError("the cell asks for a job, and has no code for it", (name, 1, 1, ""))
    return tree


def _parsed(code: str, name: str) -> ast.Module:
    if "\0" in code:
        raise _unfit(code, code.index("\0"), "a null character", name)
    try:
        with warnings.catch_warnings():
            # The replicas' Python warns of them, once.
            warnings.simplefilter("ignore")
            tree = ast.parse(code, name)
            compile(tree, name, "exec", dont_inherit=True)
    except UnicodeEncodeError as error:
        raise _unfit(code, error.start, "a half of a character", name) from None
    except (RecursionError, MemoryError):
        raise SyntaxError("the code is nested too deeply", (name, 1, 1, "")) from None
    return tree


def _unfit(code: str, position: int, what: str, name: str) -> SyntaxError:
    before = lines_of(code[: position + 1])
    number, column = (before[-1].number, len(before[-1].text)) if before else (1, 1)
    return SyntaxError(f"{what} is in the code", (name, number, column, None))


def _is_foreign(line: Line) -> bool:
    return line.foreign or (line.begins and _ASKING.fullmatch(line.text) is not None)


def _foreign(line: Line, name: str) -> SyntaxError:
    shown = line.text.strip()
    return SyntaxError(
        f"line {line.number} is for IPython, which replicas are not: {_instead(shown)}",
        (name, line.number, len(line.text) - len(line.text.lstrip()) + 1, line.text),
    )


def _instead(shown: str) -> str:
    """What to do with a line of IPython's in a job's cell."""
    found = _KEY.fullmatch(shown)
    key = keys.find(found["word"]) if found else None
    if found is None or not (key or keys.is_role(found["word"])):
        return f"put `{shown}` in a cell of its own"
    word, value = found["word"], found["value"]
    if key is not None and not key.takes:
        return f"write %{word}=true, or --{word} after %%distributed"
    example = value or (key.examples[0] if key else "2")
    return f"write %{word}={example}, or --{word} {example} after %%distributed"
