"""Parameters of a build function: their values are typed, checked and part of the target's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.environment.types import PythonPackages
from danlu.errors import UsageError
from danlu.lang.build_parameters import (
    Value,
    bind_parameters,
    format_target,
    parse_settings,
    parse_target,
)
from danlu.project.project import Project
from danlu.util.paths import Paths

FILE = """\
EXTRA = "idna"

def build(gpu=False, jobs=2, rate=0.5, mirror="a", other=None, computed=EXTRA, *, only=1):
    base(os="debian12")
    install.python_packages(name=["six", "ruff" if gpu else "mypy", "jobs%d" % jobs, mirror])

def needs(name):
    base(os="debian12")
    install.python_packages(name=[name])
"""


def bind_settings(*settings: str, function: str = "build") -> dict[str, Value]:
    values = dict(setting.split("=", 1) for setting in settings)
    return bind_parameters(FILE, "build.envd", function, values)


def open_project(directory: Path, file: str, *settings: str, name: str = "build.envd") -> Project:
    text = FILE if name.endswith(".envd") else f"from danlu import base, install\n{FILE}"
    (directory / name).write_text(text)
    paths = Paths.of({"DANLU_HOME": str(directory / "home")})
    return Project.open(file, directory=directory, paths=paths, settings=settings)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("gpu=true", True),
        ("gpu=TRUE", True),
        ("jobs=8", 8),
        ("jobs=-1", -1),
        ("rate=1", 1.0),
        ("mirror=3.12", "3.12"),
        ("mirror=", ""),
        ("other=true", "true"),
        ("computed=x=y", "x=y"),
        ("only=2", 2),
    ],
)
def test_value_has_the_type_of_the_default(setting: str, value: Value) -> None:
    name = setting.partition("=")[0]
    bound = bind_settings(setting)
    assert bound == {name: value}
    assert type(bound[name]) is type(value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [('a="3.12"', "3.12"), ("a='x'", "x"), ('a=""', ""), ('a="', '"'), ("a=\"x'", "\"x'")],
)
def test_quotes_around_a_value_are_removed(setting: str, value: str) -> None:
    assert parse_settings([setting]) == {"a": value}


def test_value_that_equals_the_default_selects_no_variant() -> None:
    assert bind_settings("gpu=false", "jobs=2", "rate=0.50", "mirror=a") == {}


@pytest.mark.parametrize(
    ("setting", "message", "hint"),
    [
        ("gpu=maybe", "invalid value 'maybe' for 'gpu' of 'build': expected true or false", ""),
        ("gpu=1", "invalid value '1' for 'gpu' of 'build': expected true or false", ""),
        ("jobs=1.5", "invalid value '1.5' for 'jobs' of 'build': expected an integer", ""),
        ("rate=inf", "invalid value 'inf' for 'rate' of 'build': expected a finite number", ""),
        ("gup=true", "'build' in build.envd has no parameter 'gup'", "did you mean gpu?"),
    ],
)
def test_invalid_value_is_refused(setting: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        bind_settings(setting)
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("default", "kind"), [("['a']", "list"), ("('a',)", "tuple"), ("{'a': 1}", "dictionary")]
)
def test_parameter_that_no_text_can_express_is_refused(default: str, kind: str) -> None:
    text = f"def build(names={default}):\n    pass\n"
    with pytest.raises(UsageError, match=f"'names' of 'build' cannot be set.* a {kind}"):
        bind_parameters(text, "build.envd", "build", {"names": "b,c"})


def test_invalid_literal_is_left_to_evaluation() -> None:
    text = "def build(a=1, names={[]: 1}):\n    pass\n"
    assert bind_parameters(text, "build.envd", "build", {"a": "2"}) == {"a": 2}


def test_unknown_function_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="no build function 'biuld'") as caught:
        bind_settings("gpu=true", function="biuld")
    assert caught.value.hint == "did you mean build?"


@pytest.mark.parametrize("text", ["build(", "build)", "build(gpu)", "build(1=2)", "(a=1)x", "a b"])
def test_invalid_target_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="invalid"):
        parse_target(text)


def test_target_names_values_in_sorted_order() -> None:
    values = bind_settings("rate=0.25", "gpu=true", 'mirror=炉"\n')
    assert format_target("build", values) == 'build(gpu=True, mirror="炉\\"\\n", rate=0.25)'


@pytest.mark.parametrize("name", ["build.envd", "build.py"])
def test_values_reach_the_function_in_both_languages(tmp_path: Path, name: str) -> None:
    project = open_project(tmp_path, f"{name}:build(gpu=true)", 'mirror=炉"', "jobs=3", name=name)
    (packages,) = project.environment().find_all(PythonPackages)
    assert packages.names == ("six", "ruff", "jobs3", '炉"')
    assert project.target == 'build(gpu=True, jobs=3, mirror="炉\\"")'


@pytest.mark.parametrize("name", ["build.envd", "build.py"])
def test_required_parameter_can_be_set(tmp_path: Path, name: str) -> None:
    (packages,) = (
        open_project(tmp_path, f"{name}:needs(name=six)", name=name)
        .environment()
        .find_all(PythonPackages)
    )
    assert packages.names == ("six",)
    with pytest.raises(UsageError, match="'needs' cannot be built: it requires arguments"):
        open_project(tmp_path, f"{name}:needs", name=name).environment()


def test_later_setting_wins(tmp_path: Path) -> None:
    project = open_project(tmp_path, "build.envd:build(jobs=3, gpu=true)", "jobs=4", "jobs=5")
    assert project.target == "build(gpu=True, jobs=5)"
