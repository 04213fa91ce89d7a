"""Repositories of others: their functions can be called, and they can do nothing else."""

from __future__ import annotations

import pytest

from danlu.environment.types import IncludeRef, SystemPackages
from danlu.errors import BuildFileError
from danlu.lang.evaluation import evaluate
from danlu.lang.functions.include import INCLUDES, LockedInclude
from danlu.lang.functions.steps import RunStep
from danlu.lang.included_repository import list_public_names
from tests.lang.support import COMMIT, InMemoryLoader, envd, finding, get_marked_text

A, B = "https://example.org/a", "https://example.org/b"
USES_A = f"a = include('{A}')\ndef build():\n    a.tools()\n"


def make_loader(
    files: dict[str, str], text: str = USES_A, **more: dict[str, str]
) -> InMemoryLoader:
    repositories = {f"https://example.org/{name}": content for name, content in more.items()}
    return InMemoryLoader({"build.envd": text}, {A: files, **repositories})


def read_expected_error(loader: InMemoryLoader) -> BuildFileError:
    with pytest.raises(BuildFileError) as caught:
        evaluate("build.envd", loader=loader)
    assert caught.value.exit_code == 2
    return caught.value


def test_all_files_of_a_repository_are_one_module() -> None:
    environment = evaluate(
        "build.envd",
        loader=make_loader(
            {
                "src/tools.envd": "load('names.envd', 'NAMES')\n"
                "def tools():\n    install.apt_packages(NAMES)\n",
                "src/names.envd": "NAMES = ['git']\n_private = 1\n",
                "other/more.envd": "def more():\n    run(['a'])\nfor x in [1]:\n    y = x\n",
            },
            f"{USES_A}    a.more()\n    run([str(a.y)] + a.NAMES)\n",
        ),
    )
    assert environment.system_packages == (SystemPackages(("git",)),)
    assert environment.steps == (RunStep(("a",)), RunStep(("1", "git")))


def test_functions_and_values_pass_between_a_file_and_its_library() -> None:
    environment = envd(
        """
        lib = include("https://example.org/lib")
        def build():
            lib.twice(lambda n: run([lib.greet(n)]))
        """,
        lib="def twice(f):\n    f(1)\n    f(2)\ndef greet(n):\n    return 'n%d' % n\n",
    )
    assert environment.steps == (RunStep(("n1",)), RunStep(("n2",)))


def test_an_included_file_may_include_and_each_is_read_once() -> None:
    loader = make_loader(
        {
            "a.envd": f"b = include('{B}', 'v2')\n"
            f"def tools():\n    b.tools()\n    late = include('{B}', 'v2')\n"
        },
        f"a = include('{A}')\ndef build():\n    a.tools()\n    include('{A}')\n",
        b={"b.envd": "def tools():\n    run(['b'])\n"},
    )
    environment = evaluate("build.envd", loader=loader)
    assert environment.steps == (RunStep(("b",)),)
    assert environment.includes == (IncludeRef(B, "v2", COMMIT), IncludeRef(A, "", COMMIT))
    assert loader.asked == ["build.envd", f"{A}@", f"{B}@v2"]


def test_an_address_may_be_computed_and_an_include_come_late() -> None:
    environment = envd(
        """
        def build():
            for name in ["one", "two"]:
                include("https://example.org/" + name).tools()
        """,
        one="def tools():\n    run(['1'])\n",
        two="def tools():\n    run(['2'])\n",
    )
    assert environment.steps == (RunStep(("1",)), RunStep(("2",)))


CIRCLES = [
    {"a.envd": f"a = include('{A}')\n"},
    {"a.envd": f"def tools():\n    include('{A}')\n"},
    {"a.envd": f"b = include('{B}')\ndef tools():\n    pass\n"},
]


@pytest.mark.parametrize("files", CIRCLES)
def test_circular_include_is_refused(files: dict[str, str]) -> None:
    error = read_expected_error(make_loader(files, b={"b.envd": f"a = include('{A}')\n"}))
    assert "itself (circular" in error.message
    assert error.span is not None


OUTSIDE = ["/etc/passwd", "../../etc/passwd", "../x.envd", "sub/../../x.envd", "..", "..\\\\x", ""]


@pytest.mark.parametrize(
    ("path", "reason"),
    [*((path, "is outside its repository") for path in OUTSIDE), ("build.envd", "not found")],
)
def test_an_included_file_reads_nothing_but_its_repository(path: str, reason: str) -> None:
    loader = make_loader({"a.envd": f"load('{path}', 'x')\n"})
    error = read_expected_error(loader)
    assert reason in error.message
    assert error.span is not None
    assert error.span.file == f"{A}/a.envd"
    assert loader.asked == ["build.envd", f"{A}@"]


ADDRESSES = [
    "/root/.ssh",
    "file:///etc",
    "../up",
    "ext::sh -c id",
    "--upload-pack=id",
    "http://10.0.0.1/x",
    "-x",
]


@pytest.mark.parametrize("url", ADDRESSES)
def test_an_included_file_includes_nothing_local(url: str) -> None:
    loader = make_loader({"a.envd": f"x = include('{url}')\ndef tools():\n    pass\n"})
    error = read_expected_error(loader)
    assert "include():" in error.message
    assert loader.asked == ["build.envd", f"{A}@"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("include('ext::sh -c id')", "not a repository address"),
        ("include('-x')", "not a repository address"),
        ("include('')", "not a repository address"),
        ("include('https://example.org/a', ref='--x')", "not a branch, tag or commit"),
        ("include(3)", "must be text"),
        ("include()", "is missing its argument 'url'"),
        ("include(uri='x')", "no argument 'uri'"),
    ],
)
def test_address_with_special_meaning_to_git_is_refused(call: str, message: str) -> None:
    error = finding(f"x = {call}\ndef build():\n    pass\n")
    assert message in error.message
    assert error.span is not None
    assert error.span.line == 1


def test_unknown_name_of_a_library_is_marked() -> None:
    error = read_expected_error(make_loader({"a.envd": "def tool():\n    pass\n"}))
    assert error.message == "'a' has no attribute 'tools'"
    assert error.hint == "did you mean 'tool'?"
    assert get_marked_text(error) == "a.tools()"


def test_an_error_in_a_library_has_its_position_and_the_caller() -> None:
    error = read_expected_error(make_loader({"src/a.envd": "def tools():\n    run('x')\n"}))
    assert error.span is not None
    assert (error.span.file, error.span.line) == (f"{A}/src/a.envd", 2)
    assert error.source_line == "    run('x')"
    assert error.details == ("called from build.envd:3: a.tools()",)


def test_a_name_defined_in_two_files_of_a_library_is_refused() -> None:
    error = read_expected_error(make_loader({"a.envd": "x = 1\n", "b.envd": "x = 2\n"}))
    assert "defines 'x' twice, in a.envd and in b.envd" in error.message


def test_names_of_a_lambda_or_comprehension_are_not_exported() -> None:
    assert list_public_names(
        "a = [b for b in [1]]\nc = lambda d: {e: 1 for e in d}\nf, (g, _h) = 1, (2, 3)\n"
        "for i in a:\n    j = i\ndef k(m):\n    n = 1\n"
    ) == ["a", "c", "f", "g", "i", "j", "k"]


def test_lock_is_stale_if_an_include_or_its_commit_changes() -> None:
    environment = envd(
        "lib = include('https://example.org/lib', 'v1')\ndef build(): pass\n", lib=""
    )
    pin = LockedInclude("https://example.org/lib", "v1", COMMIT)
    assert not INCLUDES.is_stale(environment, (pin,))
    for pins in (
        (),
        (LockedInclude(pin.url, "v1", "0" * 40),),
        (LockedInclude(pin.url, "v2", COMMIT),),
        (pin, LockedInclude("https://example.org/other", "", COMMIT)),
    ):
        assert INCLUDES.is_stale(environment, pins)


def test_a_library_that_loops_for_ever_costs_no_more_than_its_limit() -> None:
    error = read_expected_error(make_loader({"a.envd": "x = [y for y in range(1 << 30)]\n"}))
    assert "memory" in error.message or "did not finish" in error.message
    assert error.span is not None
    assert error.span.file == f"{A}/a.envd"


def test_unbound_names_of_a_library_do_not_exist() -> None:
    error = read_expected_error(make_loader({"a.envd": "if False:\n    tools = 1\n"}))
    assert error.message == "'a' has no attribute 'tools'"
