"""A workspace of uv with sources of every kind gets the packages that ``uv sync`` installs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from danlu.sources.pypi.uv import find_uv
from tests.e2e.conftest import Project
from tests.fakes.wheels import make_wheel, sha256_of

pytestmark = [pytest.mark.real, pytest.mark.slow]

ROOT = """
[project]
name = "app"
version = "1"
requires-python = ">=3.9"
dependencies = ["member", "virtual", "repository>=0.1", "pinned"]
[dependency-groups]
tools = ["iniconfig"]
[tool.uv.sources]
member = { workspace = true }
virtual = { workspace = true }
repository = { git = "file://PROJECT/repository", tag = "v1" }
pinned = { index = "special" }
directory = { path = "libs/directory" }
[tool.uv.workspace]
members = ["packages/*"]
[[tool.uv.index]]
name = "special"
url = "file://PROJECT/index"
explicit = true
"""
PACKAGE = '[project]\nname = "{0}"\nversion = "1"\nrequires-python = ">=3.9"\ndependencies = {1}\n'
BUILD = '[build-system]\nrequires = ["setuptools>=64"]\nbuild-backend = "setuptools.build_meta"\n'
LIST = """
import importlib.metadata as metadata, json, member, repository, directory, pinned
print(json.dumps([
    sorted({(d.name.lower(), d.version) for d in metadata.distributions() if d.name != "pip"}),
    [module.ORIGIN for module in (member, repository, directory, pinned)],
]))
"""


def write_package(directory: Path, name: str, origin: str, requires: str = "[]") -> None:
    module = directory / "src" / name
    module.mkdir(parents=True, exist_ok=True)
    (module / "__init__.py").write_text(f"ORIGIN = {origin!r}\n")
    (directory / "pyproject.toml").write_text(PACKAGE.format(name, requires) + BUILD)


def publish(index: Path, version: str) -> None:
    page = index / "pinned"
    wheel = make_wheel(page, "pinned", version, {"pinned.py": f"ORIGIN = {version!r}\n"})
    links = page / "index.html"
    text = links.read_text() if links.exists() else "<!DOCTYPE html>\n"
    links.write_text(f'{text}<a href="{wheel.name}#sha256={sha256_of(wheel)}">{wheel.name}</a>\n')


def write_project(directory: Path) -> None:
    (directory / "pyproject.toml").write_text(ROOT.replace("PROJECT", str(directory)))
    write_package(directory / "packages/member", "member", "workspace", '["directory", "six<1.17"]')
    write_package(directory / "libs/directory", "directory", "path")
    virtual = directory / "packages/virtual"
    virtual.mkdir()
    text = PACKAGE.format("virtual", '["colorama==0.4.6"]') + "[tool.uv]\npackage = false\n"
    (virtual / "pyproject.toml").write_text(text)
    repository = directory / "repository"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(repository)]
    write_package(repository, "repository", "git v1")
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"], ["tag", "v1"]):
        subprocess.run([*git, *words], check=True)
    write_package(repository, "repository", "git main")
    subprocess.run([*git, "commit", "-qam", "y"], check=True)
    publish(directory / "index", "1.0")


def run_uv(directory: Path, *words: str) -> None:
    subprocess.run([str(find_uv()), *words, "-q"], cwd=directory, check=True)


def list_installed_by_uv(project: Path, scratch: Path) -> object:
    """Return what :data:`LIST` prints after ``uv sync`` in a copy, without the lock it writes."""
    copy = scratch / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(project, copy)
    options = ["--python", sys.executable, "--no-default-groups", "--group", "tools"]
    run_uv(copy, "sync", *options)
    python = copy / ".venv/bin/python"
    listed = subprocess.run([python, "-c", LIST], check=True, capture_output=True, text=True)
    return json.loads(listed.stdout)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="Debian 12 has Python 3.11")
def test_the_packages_are_those_of_uv_sync(project: Project, tmp_path: Path) -> None:
    directory = project.directory
    write_project(directory)
    call = 'install.python_packages(pyproject="pyproject.toml", groups=["tools"])'
    project.write(call)
    expected = list_installed_by_uv(directory, tmp_path)
    assert json.loads(project.run("python", "-c", LIST)) == expected
    assert project("lock", "--check").returncode == 0

    # With a uv.lock, later versions on the index and in the repository change nothing.
    run_uv(directory, "lock", "--python", sys.executable, "--upgrade-package", "six==1.15.0")
    publish(directory / "index", "2.0")
    expected = list_installed_by_uv(directory, tmp_path)
    assert ["six", "1.15.0"] in expected[0]  # type: ignore[index]
    assert json.loads(project.run("python", "-c", LIST)) == expected

    # The project's own package, used in place, is added to it.
    with (directory / "pyproject.toml").open("a") as file:
        file.write(BUILD + "[tool.setuptools]\npy-modules = []\n")
    run_uv(directory, "lock", "--python", sys.executable)
    project.write(call, 'install.python_packages(["-e ."])')
    names = [name for name, _ in json.loads(project.run("python", "-c", LIST))[0]]
    assert "app" in names
    assert "virtual" not in names
    os.remove(directory / "uv.lock")
    assert [name for name, _ in json.loads(project.run("python", "-c", LIST))[0]] == names
