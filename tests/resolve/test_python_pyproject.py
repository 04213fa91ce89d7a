"""Dependencies, extras and dependency groups of a ``pyproject.toml``."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.errors import ResolveError
from danlu.resolve.python.pyproject import read_project_requirements
from danlu.sources.pypi.uv_errors import find_missing_extras
from danlu.sources.pypi.uv_project import read_uv_project
from tests.fakes.wheels import make_wheel
from tests.resolve.resolver import PythonResolver

TEXT = """
[project]
name = "My.Project"
dependencies = ["numpy>=2", "my-project[plots]"]
[project.optional-dependencies]
plots = ["matplotlib"]
GPU_extra = ["cupy ; python_version < '3.13'"]
all = ["my_project[gpu-extra,plots] ; sys_platform == 'linux'"]
loop = ["my-project[loop]", "tqdm"]
[dependency-groups]
test = ["pytest"]
Dev = [{ include-group = "test" }, "ruff"]
around = [{ include-group = "around" }]
odd = [{ include = "test" }]
"""


def read(directory: Path, text: str = TEXT, **names: list[str]) -> list[str]:
    (directory / "pyproject.toml").write_text(text)
    project = read_uv_project(directory / "pyproject.toml", directory)
    return [listed.text for listed in read_project_requirements(project, **names)]


def test_extras_and_groups_are_added_to_the_dependencies(tmp_path: Path) -> None:
    assert read(tmp_path) == ["numpy>=2", "matplotlib"]
    assert read(tmp_path, groups=["dev"]) == ["numpy>=2", "matplotlib", "pytest", "ruff"]
    assert read(tmp_path, extras=["gpu.extra"])[2:] == ["cupy ; python_version < '3.13'"]
    assert read(tmp_path, extras=["loop"])[2:] == ["tqdm"]


def test_own_extras_are_expanded_with_their_markers(tmp_path: Path) -> None:
    linux = 'sys_platform == "linux"'
    assert read(tmp_path, extras=["all"])[2:] == [
        f'cupy ; (python_version < "3.13") and ({linux})',
        f"matplotlib ; {linux}",
    ]


def test_groups_need_no_project(tmp_path: Path) -> None:
    assert read(tmp_path, '[dependency-groups]\na = ["numpy"]\n', groups=["a"]) == ["numpy"]


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        (TEXT, {"extras": ["plot"]}, "has no extra 'plot'"),
        (TEXT, {"groups": ["tests"]}, "has no dependency group 'tests'"),
        (TEXT, {"groups": ["around"]}, "around includes itself"),
        (TEXT, {"groups": ["odd"]}, "Invalid dependency group item"),
        ('[project]\ndynamic = ["dependencies"]\n', {}, "are dynamic"),
        ('[project]\ndynamic = ["optional-dependencies"]\n', {"extras": ["a"]}, "are dynamic"),
        ("[project]\ndependencies = 3\n", {}, "not a list of requirements"),
        ("project = 3\n", {}, "project is not a table"),
        ('[dependency-groups]\na = "numpy"\n', {"groups": ["a"]}, "string rather than a list"),
        ('[dependency-groups]\na = ["not a name"]\n', {"groups": ["a"]}, "Expected"),
        ("[project\n", {}, "pyproject.toml is not valid TOML"),
    ],
)
def test_an_invalid_pyproject_is_one_error(
    tmp_path: Path, text: str, names: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(ResolveError) as caught:
        read(tmp_path, text, **names)
    assert message in caught.value.message


def test_groups_and_extras_are_locked(resolver: PythonResolver) -> None:
    for name in ("numpy", "matplotlib", "pytest"):
        make_wheel(resolver.links, name, "2.0")
    (resolver.project / "pyproject.toml").write_text(TEXT.replace('"ruff"', ""))
    request = resolver.request(pyproject="pyproject.toml", groups=("dev",), extras=("plots",))
    assert [package.name for package in resolver(request)] == ["matplotlib", "numpy", "pytest"]
    with pytest.raises(ResolveError, match="no extra 'plot'") as caught:
        resolver(resolver.request(pyproject="pyproject.toml", extras=("plot",), line=4))
    assert str(caught.value.span) == "build.envd:4"
    assert "plots" in caught.value.hint


EXTRAS = '[project]\nname = "mine"\nversion = "1"\n'
TRAIN = f'{EXTRAS}[project.optional-dependencies]\ntrain = ["six"]\nServing_gpu = []\n'


@pytest.mark.parametrize("requirement", ["-e .[x]", ".[train,x]", "mine[x] @ file://{project}"])
def test_an_extra_that_the_project_does_not_have_is_refused(
    resolver: PythonResolver, requirement: str
) -> None:
    text = requirement.format(project=resolver.project)
    (resolver.project / "pyproject.toml").write_text(TRAIN)
    with pytest.raises(ResolveError, match=r"pyproject\.toml has no extra 'x'") as caught:
        resolver(resolver.request(text))
    assert caught.value.hint == "its extras: serving-gpu, train"
    (resolver.project / "pyproject.toml").write_text(EXTRAS)
    with pytest.raises(ResolveError, match="has no extra") as caught:
        resolver(resolver.request(text))
    assert "it has none" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "extra"),
    [
        (TRAIN, "serving.gpu"),
        ('[project]\nname = "mine"\ndynamic = ["optional-dependencies"]\n', "x"),
        ("[tool.poetry.extras]\nx = []\n", "x"),
    ],
)
def test_extras_that_exist_or_are_dynamic_are_left_to_the_build(
    resolver: PythonResolver, text: str, extra: str
) -> None:
    (resolver.project / "pyproject.toml").write_text(text)
    with pytest.raises(ResolveError, match="must be built from source"):
        resolver(resolver.request(f".[{extra}]"))


def test_extras_that_uv_warns_of_are_found() -> None:
    text = (
        "Resolved 2 packages in 3ms\n"
        "warning: The package `mine @ file:///run/x` does not have an extra named `x`\n"
        "warning: The package `requests==2.34.2` does not have an extra named `no-pe`\n"
        "warning: The package `a` does not have an extra named `\x1b[2J`\n"
    )
    assert find_missing_extras(text) == [("mine", "x"), ("requests", "no-pe")]
