"""A build.py is ordinary Python with the same functions and the same messages."""

from __future__ import annotations

import sys

import pytest

import danlu
from danlu.environment.types import PythonInterpreter, SystemPackages
from danlu.errors import BuildFileError, UsageError
from danlu.lang.functions.steps import RunStep
from danlu.lang.source_files import find_build_functions
from tests.lang.support import get_marked_text, python


def read_error(text: str, function: str = "build", **files: str) -> BuildFileError:
    with pytest.raises(BuildFileError) as caught:
        python(text, function, **files)
    assert caught.value.exit_code == 2
    return caught.value


def test_several_functions_and_ordinary_python() -> None:
    text = """
        from __future__ import annotations
        import dataclasses
        from danlu import install, run

        @dataclasses.dataclass
        class Tool:
            name: str
            def add(self) -> None:
                install.apt_packages([self.name])

        def build() -> None:
            for tool in map(Tool, ("git", "vim")):
                tool.add()
            try:
                run([f"{len('ab')}"])
            finally:
                install.python()

        def serve() -> None:
            run(["serve"])
        """
    build, serve = python(text), python(text, "serve")
    assert build.system_packages == (SystemPackages(("git",)), SystemPackages(("vim",)))
    assert (build.steps, build.python) == ((RunStep(("2",)),), PythonInterpreter("3.11"))
    assert (serve.steps, serve.name) == ((RunStep(("serve",)),), "serve")
    assert build.system_packages[0].span.line == 10


def test_build_py_imports_the_projects_files_and_unloads_them() -> None:
    text = """
        from danlu import install
        from helpers import add
        import pack.inner as inner
        def build():
            add("git")
            inner.add("vim")
        """
    helper = "from danlu import install\ndef add(name):\n    install.apt_packages([name])\n"
    for _ in range(2):
        environment = python(
            text, helpers=helper, **{"pack/__init__": "", "pack/inner": "from helpers import add\n"}
        )
        assert [p.names for p in environment.system_packages] == [("git",), ("vim",)]
        assert environment.system_packages[0].span.file == "helpers.py"
        assert not {"helpers", "pack", "pack.inner"} & set(sys.modules)


def test_the_standard_library_and_danlu_cannot_be_replaced() -> None:
    bad = "raise SystemExit('imported')\n"
    environment = python(
        "import wave, danlu.errors\nfrom danlu import run\ndef build():\n    run(['a'])\n",
        wave=bad,
        danlu=bad,
        **{"danlu/errors": bad},
    )
    assert environment.steps == (RunStep(("a",)),)


# (a file, what the message says, line, what is marked, a word of the hint)
WRONG = [
    ("from danlu import bas\n", "danlu has no 'bas'", 1, "from danlu import bas", "'base'"),
    (
        "import danlu\ndef build():\n    danlu.instal\n",
        "no attribute 'instal'",
        3,
        "danlu.instal",
        "",
    ),
    (
        "from danlu import install\ndef build():\n    install.pyton('3')\n",
        "no function 'pyton'",
        3,
        "install.pyton",
        "install.python",
    ),
    (
        "from danlu import install\ndef build():\n    é = 'é'; install.python(\n     vers='3')\n",
        "no argument 'vers'",
        4,
        "vers='3'",
        "version",
    ),
    (
        "from danlu import install\ndef build():\n    é = 'é'; install.python(3.11)\n",
        "must be text",
        3,
        "3.11",
        '"3.11"',
    ),
    (
        "from danlu import run\nimport pathlib\ndef build():\n    run([pathlib.Path('a')])\n",
        "of type PosixPath",
        4,
        "[pathlib.Path('a')]",
        "",
    ),
    ("def build():\n    1 / 0\n", "ZeroDivisionError: division by zero", 2, "1 / 0", ""),
    ("def build()\n    pass\n", "syntax error: expected ':'", 1, None, ""),
    ("x = 1\ndef build(:\n    pass\n", "syntax error: invalid syntax", 2, ":", ""),
    ("import nope\n", "No module named 'nope'", 1, "import nope", ""),
    ("import sys\nsys.exit(3)\n", "called exit()", 2, "sys.exit(3)", ""),
    ("def build():\n    build()\n", "recursion depth", 2, "build()", ""),
    ("async def build():\n    pass\n", "does nothing", 1, None, "async"),
    ("def build():\n    yield\n", "does nothing", 1, None, "yield"),
    ("def build(a):\n    pass\n", "requires arguments", 1, None, ""),
    ("def build(*, a):\n    pass\n", "requires arguments", 1, None, ""),
    ("def biuld():\n    pass\n", "no build function 'build'", 1, None, "'biuld'"),
    (
        "from danlu import install\ndef build():\n    install.python = 3\n",
        "cannot be set",
        3,
        None,
        "",
    ),
    ("x = '\0'\n", "null", 1, None, ""),
]


@pytest.mark.parametrize(
    ("text", "message", "line", "mark", "hint"), WRONG, ids=[w[1] for w in WRONG]
)
def test_error_has_its_location(
    text: str, message: str, line: int, mark: str | None, hint: str
) -> None:
    error = read_error(text)
    assert message in error.message
    assert hint in error.hint
    assert error.span is not None
    assert (error.span.file, error.span.line) == ("build.py", line)
    assert mark is None or get_marked_text(error) == mark


def test_error_at_the_end_of_a_line_has_its_column() -> None:
    span = read_error("def build()\n    pass\n").span
    assert span is not None
    assert (span.line, span.column) == (1, len("def build()") + 1)


def test_invalid_call_is_reported_even_if_the_file_catches_everything() -> None:
    error = read_error(
        "from danlu import run\ndef build():\n    try:\n        run('a')\n"
        "    except Exception:\n        pass\n"
    )
    assert "not one string" in error.message


def test_a_syntax_error_in_a_helper_is_placed_there() -> None:
    error = read_error("import helper\n", helper="x = (\n")
    assert error.span is not None
    assert (error.span.file, error.span.line) == ("helper.py", 1)


def test_an_error_in_a_helper_names_its_caller() -> None:
    error = read_error(
        "from helper import f\ndef build():\n    f()\n",
        helper="def f():\n    raise ValueError('no')\n",
    )
    assert error.message == "ValueError: no"
    assert error.details == ("called from build.py:3: f()",)


def test_include_names_build_envd() -> None:
    error = read_error("from danlu import include\ndef build(): pass\n")
    assert error.message == "include() is available in build.envd files only"
    assert error.span is not None
    assert (error.span.file, error.span.line) == ("build.py", 1)


def test_calling_outside_a_build_function_has_a_hint() -> None:
    with pytest.raises(UsageError, match="can only be called in a build function"):
        danlu.install.python()


def test_help_and_completion_include_the_functions() -> None:
    import inspect

    assert "python_packages" in dir(danlu.install)
    assert str(inspect.signature(danlu.config.owner)).startswith("(uid: 'int', gid: 'int')")
    assert "Install Python packages." in (danlu.install.python_packages.__doc__ or "")
    assert set(danlu.__all__) <= set(dir(danlu))


def test_functions_lists_what_can_be_built() -> None:
    text = (
        "def build(): pass\nasync def a(): pass\ndef _b(): pass\ndef c(x): pass\ndef d(x=1): pass\n"
    )
    assert find_build_functions(text) == ["build", "d"]
