"""Invalid code is reported with the cell's line numbers before anything is submitted."""

from __future__ import annotations

import ast

import pytest

from danlu.notebook.cell_code import parse_code


def refusal(code: str) -> SyntaxError:
    with pytest.raises(SyntaxError) as caught:
        parse_code(code)
    return caught.value


def test_parse_code_does_not_run_the_code() -> None:
    tree = parse_code("\n\nraise SystemExit(1)\n")
    (only,) = tree.body
    assert isinstance(only, ast.Raise)
    assert only.lineno == 3


@pytest.mark.parametrize(
    "code", ["x = 1\r\ny = 2\r\n", "x = 1\ry = 2", "\f\nx\n", "π = 1", "x = '''\n%a\n'''"]
)
def test_all_forms_of_valid_python_are_accepted(code: str) -> None:
    assert parse_code(code).body


def test_syntax_warnings_are_left_to_the_replicas() -> None:
    assert parse_code("x = '\\d'\nassert (x, 1)\n").body


@pytest.mark.parametrize(
    ("code", "line", "message"),
    [
        ("\n\nx = (\n", 3, "'(' was never closed"),
        ("\n  x = 1\n", 2, "unexpected indent"),
        ("\nfor x in y\n", 2, "expected ':'"),
        ("\nreturn 1\n", 2, "'return' outside function"),
        ("\nawait f()\n", 2, "'await' outside function"),
        ("\nx = '\0'\n", 2, "the code contains a null character"),
        ("\n\nxy = '\ud800'\n", 3, "the code contains a lone surrogate"),
    ],
)
def test_syntax_errors_have_the_cells_line(code: str, line: int, message: str) -> None:
    error = refusal(code)
    assert error.msg == message
    assert (error.filename, error.lineno) == ("<cell>", line)


@pytest.mark.parametrize(("code", "column"), [("x = '\0'", 6), ("\nxy = '\ud800'\n", 7)])
def test_invisible_characters_are_reported_with_their_column(code: str, column: int) -> None:
    assert refusal(code).offset == column


def test_syntax_error_includes_the_source_line() -> None:
    assert refusal("\n\nreturn 17").text == "return 17"


def test_file_name_of_a_syntax_error_can_be_set() -> None:
    with pytest.raises(SyntaxError) as caught:
        parse_code("(", name="cell-3.py")
    assert caught.value.filename == "cell-3.py"


@pytest.mark.parametrize(
    ("code", "line", "column", "instead"),
    [
        ("\nx = 1\n!pip install x\n", 3, 1, "move `!pip install x` to a separate cell"),
        ("\n%matplotlib inline\n", 2, 1, "move `%matplotlib inline` to a separate cell"),
        ("\nif x:\n    !ls\n", 3, 5, "move `!ls` to a separate cell"),
        ("\nfiles = !ls\n", 2, 1, "move `files = !ls` to a separate cell"),
        ("\nx?\n", 2, 1, "move `x?` to a separate cell"),
        ("\nx.y??\n", 2, 1, "move `x.y??` to a separate cell"),
        ("\n?x\n", 2, 1, "move `?x` to a separate cell"),
        ("\n%%time\nx\n", 2, 1, "move `%%time` to a separate cell"),
        ("\n%env A=1\n", 2, 1, "write %env=A=1 above the code, or --env A=1 "),
        (
            "\n%worker=2\n",
            2,
            1,
            "write %worker=2 above the code, or --worker 2 ",
        ),
        ("\n%worker\n", 2, 1, "write %worker=2 above the code, or --worker 2 "),
        ("\n%cpu 2\n", 2, 1, "write %cpu=2 above the code, or --cpu 2 "),
        ("\n%detach\n", 2, 1, "write %detach=true above the code, or --detach "),
    ],
)
def test_ipython_syntax_is_an_error_with_an_alternative(
    code: str, line: int, column: int, instead: str
) -> None:
    error = refusal(code)
    start = f"line {line} is IPython syntax, which replicas cannot run: "
    assert error.msg.startswith(start + instead)
    assert (error.lineno, error.offset) == (line, column)
    assert error.text == code.splitlines()[line - 1]


def test_first_line_of_ipython_syntax_is_reported() -> None:
    assert refusal("x = (1\n)\n!ls\n%time x\n").lineno == 3


def test_magic_inside_a_string_is_not_ipython_syntax() -> None:
    assert parse_code("x = '''\n!ls\n%time\n'''\ny = (1\n%x)\n").body
    assert refusal("x = '''\n!ls\n'''\ny = (\n").msg == "'(' was never closed"


@pytest.mark.parametrize("code", ["", "\n\n", "\n# only a comment\n"])
def test_job_without_code_is_an_error(code: str) -> None:
    assert refusal(code).msg == "the cell has options but no code to run"


def test_too_deeply_nested_code_is_an_error() -> None:
    assert refusal("\n" + "-" * 100_000 + "1").lineno
