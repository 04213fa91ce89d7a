"""The lines of a cell that begin code: as in Python, also for cells that Python cannot parse."""

from __future__ import annotations

import io
import sys
import sysconfig
import tokenize
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.notebook.tokenizer import split_lines

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
MODULES = ("argparse", "ast", "dataclasses", "difflib", "inspect", "textwrap", "typing", "turtle")
LAYOUT = {tokenize.ENCODING, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def beginnings(source: str) -> set[int]:
    """The lines where Python's tokenizer begins a logical line, empty ones and comments too."""
    result, fresh = set(), True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in LAYOUT:
            continue
        if fresh:
            result.add(token.start[0])
        if token.type == tokenize.NEWLINE:
            fresh = True
        elif token.type not in (tokenize.NL, tokenize.COMMENT):
            fresh = False
    return result


@pytest.mark.parametrize("module", MODULES)
def test_logical_lines_start_where_python_starts_them(module: str) -> None:
    source = (LIBRARY / f"{module}.py").read_text(encoding="utf-8")
    assert {line.number for line in split_lines(source) if line.starts_logical_line} == beginnings(
        source
    )


INSIDE = {
    "brackets": "x = (1,\n%worker=2\n)",
    "square brackets": "x = [\n%worker\n]",
    "a mapping": "x = {\n%worker\n}",
    "brackets in brackets": "f([(1),\n%worker=2\n])",
    "a triple string": "'''\n%worker=2\n'''",
    "a triple string of the other quotes": '"""\n%worker=2\n"""',
    "a triple string with a quote in it": '"""a "" b\n%worker=2\n"""',
    "a triple string with an escaped quote": '"""\\"""\n%worker=2\n"""',
    "a raw triple string": 'R"""\\"""\n%worker=2\n"""',
    "bytes": "rb'''\n%worker=2\n'''",
    "an old unicode string": "u'''\n%worker=2\n'''",
    "a formatted string": "f'''\n%worker=2\n'''",
    "a raw formatted string": 'fR"""\\\n%worker=2\n"""',
    "a template string": "t'''{x}\n%worker=2\n'''",
    "the field of a formatted string": "f'''{x\n%worker}'''",
    "a field with the same quotes": 'f"{x["\\n"]\n%worker}"',
    "a string in a field in a string": "f'{f'{'''\n%worker=2\n'''}'}'",
    "a format": "f'''{x:\n%worker=2\n}'''",
    "a field in a format": "f'''{x:{\n%worker}}'''",
    "a formatted string after doubled braces": "f'''{{\n%worker=2\n}}'''",
    "a string with a bracket": "x = ')', (\n%worker\n)",
    "a backslash before it": "x = 17 \\\n%worker",
    "a backslash in a string before it": "x = 'a \\\n%worker=2'",
    "a continued command": "!echo \\\n%worker=2",
    "a continued magic": "%run train.py \\\n%worker=2",
    "a continued command with a result": "x = !echo \\\n%worker=2",
}


@pytest.mark.parametrize("source", INSIDE.values(), ids=INSIDE.keys())
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
def test_no_logical_line_starts_inside(source: str, end: str) -> None:
    source = source.replace("\n", end)
    (line,) = [line for line in split_lines(source) if line.text.startswith("%worker")]
    assert not line.starts_logical_line


OUTSIDE = {
    "a comment with a quote": "# it's\n",
    "a comment with three quotes": '# """\n',
    "a comment with a bracket": "# (\n",
    "a string with a hash": "x = '#('\n",
    "a string with an escaped quote": "x = 'a\\'('\n",
    "a raw string with a backslash": "x = r'\\('\n",
    "a string whose quotes were left open": "x = 'abc\n",
    "a formatted string that was left open": "x = f'abc {y}\n",
    "a format that was left open": "x = f'abc {y:>3\n",
    "doubled braces": "x = f'{{'\n",
    "a lambda in a field": "f'{(lambda: 1)()}'\n",
    "a mapping in a field": "f'{ {1: 2} }'\n",
    "a format with a quote": 'f"{x:\'>10}"\n',
    "a format of a time": "f'{x:%H:%M}'\n",
    "a name of a character": "f'\\N{DIGIT ONE}'\n",
    "a word that ends like a prefix": "buf = 1; rf = 2\n",
    "a command with a quote": "!echo it's\n",
    "a command with three quotes": "!echo '''\n",
    "a command with a bracket": "!echo (\n",
    "a magic with a quote": "%timeit 'a\n",
    "a question with a bracket": "?foo(\n",
    "a result of a command with a quote": "x = !echo it's '''\n",
    "a result of a magic with a bracket": "x = %sql select (\n",
    "a closing bracket too many": "x = 1)\n",
    "a form feed": "\f\n",
    "an empty line": "\n",
    "a comparison": "x == y\n",
}


@pytest.mark.parametrize("source", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_logical_line_starts_after(source: str) -> None:
    line = split_lines(source + "%worker=2")[-1]
    assert line.text == "%worker=2"
    assert line.starts_logical_line


@pytest.mark.parametrize(
    ("source", "foreign"),
    [
        ("!ls", True),
        ("  !ls", True),
        ("%time x", True),
        ("?x", True),
        ("x = !ls", True),
        ("x=%time y", True),
        ("x != y", False),
        ("x %= y", False),
        ("x = y % z", False),
        ("x = '= !ls'", False),
        ("x = f'{y=!r}'", False),
        ("f(x= !y)", False),
        ("x == !y", False),
    ],
)
def test_ipython_lines_are_recognized(source: str, foreign: bool) -> None:
    assert split_lines(source)[0].is_ipython is foreign


PIECES = [
    *"'\"()[]{}:=!%#\\ \t\f\n\r\0\x0b\x1c\u2028xfrbté",
    "'''",
    '"""',
    "\r\n",
    "f'",
    "{{",
    "}}",
]
ANY_CODE = st.lists(
    st.sampled_from([*PIECES, 'rf"""', "%worker=2", "\n%worker=2\n"]), max_size=60
).map("".join)


@given(ANY_CODE | st.text())
def test_lines_add_up_to_the_text(source: str) -> None:
    lines = split_lines(source)
    assert "".join(line.text + line.end for line in lines) == source
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    assert all(line.end in ("\n", "\r\n", "\r") for line in lines[:-1])
    assert not lines or lines[0].starts_logical_line


@given(ANY_CODE)
def test_tokenizer_agrees_with_python(source: str) -> None:
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    if any(line.is_ipython for line in split_lines(source)):
        return
    try:
        compile(source, "cell", "exec")
        expected = beginnings(source)
    except (SyntaxError, ValueError, tokenize.TokenError):
        return
    # The tokenizer has its own mind of a last line of blanks.
    content = [line for line in split_lines(source) if line.text.strip()]
    assert {line.number for line in content if line.starts_logical_line} == expected & {
        line.number for line in content
    }


def test_deep_nesting_is_tokenized() -> None:
    depth = 3 * sys.getrecursionlimit()
    source = "f'{" * depth + "x" + "}'" * depth + "\n%worker=2"
    assert split_lines(source)[-1].starts_logical_line
