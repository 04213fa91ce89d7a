"""A lock gives the same image whatever pip and uv are configured with, and can be made again."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.conftest import REAL_LIMIT, program_in, remove_tree
from tests.e2e.conftest import Project
from tests.fakes.package_settings import SettingCase, list_cases, write_setting_files
from tests.fakes.wheels import make_wheel

pytestmark = pytest.mark.real

#: A base with Python that the shared home builds for many tests.
BASE = "local/python:1"
BUILD_FILE = f"""\
def build():
    base(image="{BASE}")
    install.python_packages(requirements="requirements.txt")
"""

#: A build backend without requirements of its own: it needs `build-helper` to build.
BACKEND = """\
import pathlib, zipfile

INFO = "built-1.0.dist-info"
FILES = {
    "built.py": "",
    f"{INFO}/METADATA": "Metadata-Version: 2.1\\nName: built\\nVersion: 1.0\\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\n"
    "Root-Is-Purelib: true\\nTag: py3-none-any\\n",
}


def build_wheel(directory, config_settings=None, metadata_directory=None):
    import build_helper

    name = "built-1.0-py3-none-any.whl"
    record = "".join(f"{path},,\\n" for path in (*FILES, f"{INFO}/RECORD"))
    with zipfile.ZipFile(pathlib.Path(directory, name), "w") as wheel:
        for path, text in {**FILES, f"{INFO}/RECORD": record}.items():
            wheel.writestr(zipfile.ZipInfo(path), text)
    return name
"""
PROJECT = """\
[project]
name = "built"
version = "1.0"

[build-system]
requires = ["build-helper"]
build-backend = "backend"
backend-path = ["."]
"""

#: Variables that decide how this test's own programs run.
OWN_VARIABLES = ("PYTHONHOME", "PYTHONPATH")


class SettingsProject:
    """A project with packages from a directory, in a home of its own, with a committed lock."""

    def __init__(self, directory: Path, home: Path) -> None:
        self.directory = directory
        self.files = directory.with_name("files")
        self.home = home
        write_setting_files(self.files)
        write_packages(directory / "links")
        (directory / "build.envd").write_text(BUILD_FILE)
        self.require("fetched", "built")
        self.digest = self.build()
        self.lock = (directory / "danlu.lock").read_text()

    def __call__(self, *arguments: str, **variables: str) -> str:
        danlu = Path(sys.executable).with_name("danlu")
        done = subprocess.run(
            [str(danlu), *arguments],
            cwd=self.directory,
            env={**os.environ, "DANLU_HOME": str(self.home), **variables},
            capture_output=True,
            text=True,
            timeout=REAL_LIMIT,
        )
        assert done.returncode == 0, f"danlu {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def require(self, *names: str) -> None:
        lines = ("--no-index", "--find-links links", *names)
        text = "".join(f"{line}\n" for line in lines)
        (self.directory / "requirements.txt").write_text(text)

    def build(self, *arguments: str, **variables: str) -> str:
        """Return the digest of a build that installs and builds every package again."""
        file = self.directory.with_name("metadata.json")
        for _ in range(10):
            # Layers that another process of danlu still works on survive pruning.
            self("image", "prune", "--all")
            self("build", "--metadata-file", str(file), *arguments, **variables)
            metadata: dict[str, Any] = json.loads(file.read_text())
            cached = {vertex["name"]: vertex["cached"] for vertex in metadata["vertices"]}
            if not cached["fetched 1.0"]:
                return str(metadata["image"]["config"])
        raise AssertionError("pruning removes no layers")

    def restore(self) -> None:
        self.require("fetched", "built")
        (self.directory / "danlu.lock").write_text(self.lock)
        (self.directory / "uv.toml").unlink(missing_ok=True)

    def read_lock(self) -> dict[str, Any]:
        value = tomllib.loads((self.directory / "danlu.lock").read_text())
        function: dict[str, Any] = value["function"]["build"]
        return function

    def configure(self, cases: list[SettingCase]) -> dict[str, str]:
        """Write the configuration files of ``cases`` and return their variables."""
        filled = [case.fill(self.files) for case in cases]
        (self.directory / "uv.toml").write_text(join_tables([case.uv_toml for case in filled]))
        pip_conf = self.files / "pip.conf"
        pip_conf.write_text("".join(case.pip_conf for case in filled).replace("\n[install]", ""))
        pip = {"PIP_CONFIG_FILE": str(pip_conf)} if pip_conf.stat().st_size else {}
        return {**pip, **{name: value for case in filled for name, value in case.variables}}


def join_tables(texts: list[str]) -> str:
    """Return settings of uv with those below ``[pip]`` at the end."""
    plain = [text for text in texts if not text.startswith("[pip]")]
    below = [text.removeprefix("[pip]\n") for text in texts if text.startswith("[pip]")]
    return "".join((*plain, "[pip]\n", *below)) if any(texts) else ""


def write_packages(links: Path) -> None:
    links.mkdir(parents=True)
    for version in ("1.0", "2.0"):
        make_wheel(links, "limited", version, files={"limited.py": f"VERSION = '{version}'\n"})
    make_wheel(links, "fetched", files={"fetched.py": ""}, requires=["limited"])
    make_wheel(links, "build-helper", files={"build_helper.py": ""})
    make_wheel(links, "pip", files={"pip/__init__.py": ""})
    metadata = "Metadata-Version: 2.2\nName: built\nVersion: 1.0\n"
    files = {"PKG-INFO": metadata, "pyproject.toml": PROJECT, "backend.py": BACKEND}
    with tarfile.open(links / "built-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"built-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))


@pytest.fixture(scope="module")
def project(real_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SettingsProject]:
    directory = tmp_path_factory.mktemp("settings")
    shared = Project(directory, program_in(real_home))
    shared.write("install.python()")
    shared("build", "-t", BASE)
    shared("image", "save", BASE, "-o", "base.tar", "--compression", "none")
    home = real_home.with_name(f"{real_home.name}-settings")
    try:
        program_in(home)("image", "load", "base.tar", "-t", BASE, cwd=directory)
        yield SettingsProject(directory / "project", home)
    finally:
        remove_tree(home)


def list_groups() -> list[tuple[str, list[SettingCase]]]:
    """Return the cases: each restriction alone, all others of one kind and spelling together."""

    def find_group(case: SettingCase) -> str:
        kind = case.id.split(" ")[0]
        program = "PIP" if case.variables and case.variables[0][0].startswith("PIP_") else ""
        restricts = case.setting.decision in ("resolving", "building")
        return case.id if restricts else f"{kind} {program} {case.setting.decision}"

    cases = [case for case in list_cases() if case.name not in OWN_VARIABLES]
    cases.sort(key=find_group)
    return [(name, list(group)) for name, group in groupby(cases, find_group)]


def list_params() -> list[ParameterSet]:
    """Return the groups; a restriction in its second spelling is slow: quick tests read it."""
    params: list[ParameterSet] = []
    restricting: set[str] = set()
    for name, cases in list_groups():
        setting = cases[0].setting.name if len(cases) == 1 else ""
        marks = [pytest.mark.slow] if setting in restricting else []
        params.append(pytest.param(cases, id=name, marks=marks))
        restricting |= {setting} - {""}
    return params


@pytest.mark.parametrize("cases", list_params())
def test_a_lock_gives_the_same_image_under_each_setting(
    project: SettingsProject, cases: list[SettingCase]
) -> None:
    project.restore()
    variables = project.configure(cases)
    assert project.build("--frozen", **variables) == project.digest
    # Another requirement, which the locked packages satisfy, makes danlu resolve them again.
    builds = not any(case.name == "no-build" for case in cases)
    project.require("fetched>=1", *(("built",) if builds else ()))
    project("lock", **variables)
    lock = project.read_lock()
    recorded = {setting["name"] for setting in lock.get("package_settings", ())}
    restricting = {case.setting.name for case in cases if case.setting.decision == "resolving"}
    restricting |= {case.setting.name for case in cases if case.setting.decision == "building"}
    assert bool(recorded) == bool(restricting)
    text = (project.directory / "danlu.lock").read_text()
    assert str(project.files) not in text
    if len(cases) == 1 and cases[0].name == "constraint":
        versions = {package["name"]: package["version"] for package in lock["packages"]}
        assert versions["limited"] == "1.0"


@pytest.mark.slow
def test_what_restricted_a_package_is_named_until_the_package_changes(
    project: SettingsProject,
) -> None:
    project.restore()
    constraints = str(project.files / "constraints.txt")
    project.require("fetched>=1", "built")
    project("lock", PIP_CONSTRAINT=constraints)
    entry = "constraint: limited<2 (PIP_CONSTRAINT)"
    assert entry in project("plan", "--why")
    project.require("fetched>=1")
    project("lock")  # on a machine without the constraint
    assert entry in project("plan", "--why")
    project.build("--frozen")
    project("lock", "--upgrade", "limited")
    assert "constraint" not in project("plan", "--why")


def test_a_missing_constraints_file_stops_only_a_new_lock(project: SettingsProject) -> None:
    project.restore()
    variables = {"PIP_CONSTRAINT": "/nowhere/limits.txt"}
    project.build("--frozen", **variables)
    project("lock", **variables)
    project.require("fetched>=1", "built")
    with pytest.raises(AssertionError, match=r"/nowhere/limits\.txt not found") as caught:
        project("lock", **variables)
    assert "`constraint` in PIP_CONSTRAINT names it" in str(caught.value)
