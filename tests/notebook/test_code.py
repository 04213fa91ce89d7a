"""Code that is none is refused with the cell's own line, before anything is submitted."""

from __future__ import annotations

import ast

import pytest

from danlu.notebook.code import check


def refusal(code: str) -> SyntaxError:
    with pytest.raises(SyntaxError) as caught:
        check(code)
    return caught.value


def test_code_is_parsed_and_not_run() -> None:
    tree = check("\n\nraise SystemExit(1)\n")
    (only,) = tree.body
    assert isinstance(only, ast.Raise)
    assert only.lineno == 3


@pytest.mark.parametrize(
    "code", ["x = 1\r\ny = 2\r\n", "x = 1\ry = 2", "\f\nx\n", "π = 1", "x = '''\n%a\n'''"]
)
def test_any_form_of_python_is_taken(code: str) -> None:
    assert check(code).body


def test_what_python_warns_of_is_left_to_the_replicas() -> None:
    assert check("x = '\\d'\nassert (x, 1)\n").body


@pytest.mark.parametrize(
    ("code", "line", "message"),
    [
        ("\n\nx = (\n", 3, "'(' was never closed"),
        ("\n  x = 1\n", 2, "unexpected indent"),
        ("\nfor x in y\n", 2, "expected ':'"),
        ("\nreturn 1\n", 2, "'return' outside function"),
        ("\nawait f()\n", 2, "'await' outside function"),
        ("\nx = '\0'\n", 2, "a null character is in the code"),
        ("\n\nxy = '\ud800'\n", 3, "a half of a character is in the code"),
    ],
)
def test_what_is_no_python_is_told_with_its_line(code: str, line: int, message: str) -> None:
    error = refusal(code)
    assert error.msg == message
    assert (error.filename, error.lineno) == ("<cell>", line)


@pytest.mark.parametrize(("code", "column"), [("x = '\0'", 6), ("\nxy = '\ud800'\n", 7)])
def test_what_nobody_sees_is_told_with_its_column(code: str, column: int) -> None:
    assert refusal(code).offset == column


def test_an_error_brings_its_line_since_no_file_has_it() -> None:
    assert refusal("\n\nreturn 17").text == "return 17"


def test_the_file_may_have_a_name() -> None:
    with pytest.raises(SyntaxError) as caught:
        check("(", name="cell-3.py")
    assert caught.value.filename == "cell-3.py"


@pytest.mark.parametrize(
    ("code", "line", "column", "instead"),
    [
        ("\nx = 1\n!pip install x\n", 3, 1, "put `!pip install x` in a cell of its own"),
        ("\n%matplotlib inline\n", 2, 1, "put `%matplotlib inline` in a cell of its own"),
        ("\nif x:\n    !ls\n", 3, 5, "put `!ls` in a cell of its own"),
        ("\nfiles = !ls\n", 2, 1, "put `files = !ls` in a cell of its own"),
        ("\nx?\n", 2, 1, "put `x?` in a cell of its own"),
        ("\nx.y??\n", 2, 1, "put `x.y??` in a cell of its own"),
        ("\n?x\n", 2, 1, "put `?x` in a cell of its own"),
        ("\n%%time\nx\n", 2, 1, "put `%%time` in a cell of its own"),
        ("\n%env A=1\n", 2, 1, "write %env=A=1, or --env A=1 after %%distributed"),
        ("\n%worker=2\n", 2, 1, "write %worker=2, or --worker 2 after %%distributed"),
        ("\n%worker\n", 2, 1, "write %worker=2, or --worker 2 after %%distributed"),
        ("\n%cpu 2\n", 2, 1, "write %cpu=2, or --cpu 2 after %%distributed"),
        ("\n%detach\n", 2, 1, "write %detach=true, or --detach after %%distributed"),
    ],
)
def test_lines_for_ipython_are_told_with_what_to_do(
    code: str, line: int, column: int, instead: str
) -> None:
    error = refusal(code)
    start = f"line {line} is for IPython, which replicas are not: "
    assert error.msg == start + instead
    assert (error.lineno, error.offset) == (line, column)
    assert error.text == code.splitlines()[line - 1]


def test_the_first_line_for_ipython_is_told() -> None:
    assert refusal("x = (1\n)\n!ls\n%time x\n").lineno == 3


def test_what_looks_like_a_magic_in_a_string_is_none() -> None:
    assert check("x = '''\n!ls\n%time\n'''\ny = (1\n%x)\n").body
    assert refusal("x = '''\n!ls\n'''\ny = (\n").msg == "'(' was never closed"


@pytest.mark.parametrize("code", ["", "\n\n", "\n# only a comment\n"])
def test_a_job_without_code_is_refused(code: str) -> None:
    assert refusal(code).msg == "the cell asks for a job, and has no code for it"


def test_code_that_is_nested_too_deeply_is_refused() -> None:
    assert refusal("\n" + "-" * 100_000 + "1").lineno
