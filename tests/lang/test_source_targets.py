"""``io.copy(source=…)``: the functions that a build function copies from."""

from __future__ import annotations

import pytest

from danlu.environment.types import Environment
from danlu.errors import BuildFileError
from danlu.lang.evaluation import evaluate
from danlu.lang.functions.steps import CopyStep, RunStep
from tests.lang.support import InMemoryLoader, envd, finding, get_marked_text, python

FILE = """\
NAMES = ["git"]

def toolchain():
    base(os="debian12")
    install.apt_packages(NAMES + ["g++"])

def wheel(gpu=False):
    base(os="debian12")
    io.copy("/usr/bin/g++", "/opt/", source=toolchain)
    run(["make gpu=%s" % gpu])

def unused():
    fail("evaluated")

def production(gpu=False):
    base(os="ubuntu22.04")
    io.copy("/dist/*.whl", "/opt/", source=wheel, parameters={"gpu": gpu})
    io.copy("/usr/bin/git", "/usr/bin/git", source=toolchain)
    io.copy("/usr/bin/g++", "/opt/g++", source=wheel)
"""
PYTHON_FILE = "from danlu import base, install, io, run\n" + FILE.replace(
    'fail("evaluated")', 'raise ValueError("evaluated")'
)


@pytest.fixture(params=["envd", "python"])
def production(request: pytest.FixtureRequest) -> Environment:
    if request.param == "python":
        return python(PYTHON_FILE, "production")
    return envd(FILE, "production")


def test_functions_that_are_copied_from_are_part_of_the_environment(
    production: Environment,
) -> None:
    assert list(production.sources) == ["toolchain", "wheel"], "each after its own sources"
    assert production.sources["wheel"].steps == (
        CopyStep("/usr/bin/g++", "/opt/", function="toolchain"),
        RunStep(("make gpu=False",)),
    )
    assert [step.source_target() for step in production.steps] == ["wheel", "toolchain", "wheel"]
    assert production.project_files() == {}
    assert production.base.os == "ubuntu22.04"
    assert production.sources["toolchain"].system_packages[0].names == ("git", "g++")


@pytest.mark.parametrize("file", ["build.envd", "build.py"])
def test_parameters_select_a_variant_of_the_source(file: str) -> None:
    text = FILE if file.endswith(".envd") else PYTHON_FILE
    environment = evaluate(
        file, "production", arguments={"gpu": True}, loader=InMemoryLoader({file: text})
    )
    assert list(environment.sources) == ["toolchain", "wheel(gpu=True)", "wheel"]
    assert environment.sources["wheel(gpu=True)"].steps[-1] == RunStep(("make gpu=True",))


def test_whole_number_is_accepted_for_a_float() -> None:
    environment = envd(
        """
        def tools(rate=0.5, jobs=2):
            run(["echo %s %d" % (rate, jobs)])
        def build():
            io.copy("/a", "/b", source=tools, parameters={"rate": 2, "jobs": 2})
        """
    )
    assert environment.sources["tools(rate=2.0)"].steps == (RunStep(("echo 2.0 2",)),)


def test_calls_at_the_top_level_belong_to_every_function() -> None:
    environment = envd(
        """
        install.apt_packages(["make"])
        def tools():
            base(os="debian12")
        def build():
            base(os="debian12")
            io.copy("/usr/bin/make", "/opt/", source=tools)
        """
    )
    for described in (environment, environment.sources["tools"]):
        assert [item.names for item in described.system_packages] == [("make",)]


def test_functions_do_not_see_what_others_changed_in_global_lists(
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = {
        "build.envd": """\
load("common.envd", "common")
NAMES = ["make"]
print("top")
def tools():
    print("tools")
    common()
    NAMES.append("g++")
    install.apt_packages(NAMES)
def build():
    tools()
    io.copy("/a", "/b", source=tools)
""",
        "common.envd": 'install.apt_packages(["git"])\ndef common():\n    base(os="debian12")\n',
    }
    environment = evaluate("build.envd", loader=InMemoryLoader(files))
    for described in (environment, environment.sources["tools"]):
        assert [item.names for item in described.system_packages] == [("git",), ("make", "g++")]
    assert capsys.readouterr().err.split() == ["top", "tools", "tools"]


def test_a_function_of_a_loaded_file_can_be_copied_from() -> None:
    files = {
        "build.envd": 'load("tools.envd", "tools")\n'
        'def build():\n    io.copy("/a", "/b", source=tools, parameters={"x": 1})\n',
        "tools.envd": 'def tools(x):\n    base(os="debian12")\n    run(["echo %d" % x])\n',
    }
    environment = evaluate("build.envd", loader=InMemoryLoader(files))
    assert environment.sources["tools(x=1)"].steps == (RunStep(("echo 1",)),)


def test_source_may_still_be_the_path_as_in_envd() -> None:
    environment = envd('def build():\n    io.copy(source="a", target="/b")\n')
    assert environment.steps == (CopyStep("a", "/b"),)


@pytest.mark.parametrize(
    ("line", "message", "hint", "mark"),
    [
        (
            "io.copy('/a', '/b', source=build)",
            "io.copy(): 'build' copies files of itself",
            "neither",
            "io.copy('/a', '/b', source=build)",
        ),
        (
            "io.copy('/a', '/b', source=lambda: 1)",
            "argument 'source' must be a function that the build file defines at its top level",
            "load or import",
            "source=lambda: 1",
        ),
        (
            "io.copy('/a', '/b', source=3)",
            "argument 'source' must be a build function, not a whole number",
            "source=development",
            "source=3",
        ),
        (
            "io.copy('/a', '/b', source=other())",
            "argument 'source' must be a build function, not None",
            "without quotes and parentheses",
            "source=other()",
        ),
        (
            "io.copy('/a', '/b', source=other, image='x:1')",
            "io.copy(): both image and source",
            "one of them",
            "source=other",
        ),
        (
            "io.copy('/a', '/b', source=other, parameters={'gup': True})",
            "'other' has no parameter 'gup'",
            "did you mean gpu?",
            "parameters={'gup': True}",
        ),
        (
            "io.copy('/a', '/b', source=other, parameters={'gpu': 'yes'})",
            "the value of 'gpu' must be of the type of its default, False",
            "",
            "parameters={'gpu': 'yes'}",
        ),
        (
            "io.copy('/a', '/b', source=other, parameters={1: True})",
            "has a key that is not a parameter's name: 1",
            "",
            "parameters={1: True}",
        ),
        (
            "io.copy('/a', '/b', parameters={'gpu': True})",
            "io.copy(): parameters without source",
            "source=",
            "parameters={'gpu': True}",
        ),
        (
            "io.copy('/a', '/b', source=needs)",
            "'needs' cannot be built: it requires arguments",
            "build functions of build.envd: build, other",
            "n",
        ),
        (
            "io.copy('/a', '/b', source=other, parameters=[1])",
            "argument 'parameters' must be a dictionary of values, not a list",
            "",
            "parameters=[1]",
        ),
    ],
)
def test_invalid_source_is_marked(line: str, message: str, hint: str, mark: str) -> None:
    error = finding(
        f"def build():\n    {line}\ndef other(gpu=False):\n    base(os='debian12')\n"
        "def needs(x):\n    base(os='debian12')\n"
    )
    assert message in error.message
    assert hint in error.hint
    assert get_marked_text(error) == mark


@pytest.mark.parametrize("start", ["a", "b", "c"])
def test_cycle_is_an_error_with_the_line_that_closes_it(start: str) -> None:
    text = "".join(
        f"def {name}():\n    io.copy('/x', '/y', source={source})\n"
        for name, source in ("ab", "bc", "ca")
    )
    for error in (finding(text, start), _python_error(f"from danlu import io\n{text}", start)):
        assert error.exit_code == 2
        assert error.message.startswith(f"io.copy(): '{start}' copies files of '")
        assert error.message.endswith(f"which copies files of '{start}'")
        assert get_marked_text(error) == f"io.copy('/x', '/y', source={start})"


def test_functions_without_end_are_an_error() -> None:
    text = "def build(n=0):\n    io.copy('/x', '/y', source=build, parameters={'n': n + 1})\n"
    for error in (finding(text), _python_error(f"from danlu import io\n{text}", "build")):
        assert error.message == "more than 64 build functions copy files from one another"
        assert error.span is not None
        assert error.span.line == text.count("\n", 0, text.index("io.copy")) + (
            2 if error.span.file == "build.py" else 1
        )


def test_an_error_in_the_source_has_its_own_line() -> None:
    error = finding(
        "def build():\n    io.copy('/a', '/b', source=other)\ndef other():\n    install.nope()\n"
    )
    assert error.span is not None
    assert error.span.line == 4


def _python_error(text: str, function: str) -> BuildFileError:
    with pytest.raises(BuildFileError) as caught:
        python(text, function)
    return caught.value
