"""A parameter of a build function selects an environment with a separate lock."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.e2e.conftest import Project

pytestmark = pytest.mark.real

FILE = """\
def build(extra=False):
    base(os="debian12")
    install.python_packages(name=["packaging", "idna"] if extra else ["packaging"])
"""
LIST = "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions()))"


def test_variant_is_locked_by_itself_and_keeps_the_versions_of_the_defaults(
    project: Project,
) -> None:
    file = project.directory / "build.envd"
    file.write_text(FILE.replace('["packaging"]', '["packaging<24"]'))
    project("lock")
    file.write_text(FILE)
    project("lock")  # keeps the old version
    project("lock", "--set", "extra=true")
    lock = project.directory / "danlu.lock"
    functions = tomllib.loads(lock.read_text())["function"]
    assert set(functions) == {"build", "build(extra=True)"}
    versions = [
        {package["name"]: package["version"] for package in section["packages"]}
        for section in functions.values()
    ]
    assert versions[0]["packaging"] == versions[1]["packaging"]
    assert versions[0]["packaging"].startswith("23.")

    frozen = lock.read_bytes()
    command = ["run", "--frozen", "--set", "extra=true", "--", "python", "-c", LIST]
    assert "idna" in project(*command).stdout.split()
    assert "idna" not in project.run("python", "-c", LIST).split()
    assert re.search("up to date", project("build", "--set", "extra=true").stderr)
    assert lock.read_bytes() == frozen
