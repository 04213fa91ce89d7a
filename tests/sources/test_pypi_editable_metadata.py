"""An editable installation becomes stale if its package's metadata changes, not its code."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from danlu.errors import DanluError
from danlu.sources.pypi.editable_metadata import (
    copy_for_editable,
    digest_metadata,
    locate_editable,
)

PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "mine"
readme = "README.md"
dynamic = ["version", "dependencies"]
[tool.setuptools.dynamic]
version = {attr = "mine.about.__version__"}
dependencies = {file = ["requirements.txt"]}
optional-dependencies = {gpu = {file = "needs/gpu.txt"}}
[tool.hatch.version]
path = "src/mine/v.py"
[tool.ruff]
line-length = 99
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    for name, text in {
        "pyproject.toml": PYPROJECT,
        "README.md": "# mine",
        "LICENSE": "free",
        "requirements.txt": "six",
        "src/mine/__init__.py": "",
        "src/mine/about.py": '__version__ = "1.0"\n',
        "src/mine/deep/__init__.py": "",
        "setup.cfg": "[flake8]\nignore = E501\n[options]\nzip_safe = no\nversion = file: VERSION\n",
        "VERSION": "1",
        "needs/gpu.txt": "six",
        "src/mine/v.py": "__version__ = '1'",
    }.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    return project


def edit(name: str, old: str, new: str) -> Callable[[Path], object]:
    def change(project: Path) -> None:
        text = (project / name).read_text()
        assert old in text
        (project / name).write_text(text.replace(old, new, 1))

    return change


def write(name: str, text: str = "x = 1\n") -> Callable[[Path], object]:
    def change(project: Path) -> None:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)

    return change


@pytest.mark.parametrize(
    "change",
    [
        edit("README.md", "mine", "ours"),
        write("src/mine/__init__.py"),
        write("src/mine/about.py", '"""Why."""\n__version__ = "1.0"\nother = 2\n'),
        write("src/mine/more.py"),
        write("src/mine/inner/__init__.py"),
        write("src/mine.egg-info/PKG-INFO"),
        write("runs/1/result.json"),
        write("data/table.csv"),
        write("tests/__init__.py"),
        write("train.py"),
        write("danlu.lock"),
    ],
)
def test_an_edit_of_code_leaves_the_metadata(
    project: Path, change: Callable[[Path], object]
) -> None:
    before = digest_metadata(project, ".")
    change(project)
    assert digest_metadata(project, ".") == before


@pytest.mark.parametrize(
    "change",
    [
        edit("pyproject.toml", "[project]", '[project.scripts]\nsay = "mine:say"\n[project]'),
        edit("pyproject.toml", '"mine"', '"ours"'),
        edit("pyproject.toml", '"setuptools"]', '"setuptools<80"]'),
        edit("requirements.txt", "six", "six\ntqdm"),
        edit("setup.cfg", "safe = no", "safe = yes"),
        edit("LICENSE", "free", "not free"),
        edit("src/mine/about.py", "1.0", "1.1"),
        edit("VERSION", "1", "2"),
        edit("needs/gpu.txt", "six", "tqdm"),
        edit("src/mine/v.py", "1", "2"),
        write("src/other/__init__.py"),
        write("src/space/inner/__init__.py"),
        write("setup.py", "from setuptools import setup\nsetup()\n"),
        write("pyproject.toml", "not TOML ["),
        lambda project: (project / "pyproject.toml").unlink(),
    ],
)
def test_a_change_of_the_metadata_is_noticed(
    project: Path, change: Callable[[Path], object]
) -> None:
    before = digest_metadata(project, ".")
    change(project)
    assert digest_metadata(project, ".") != before


def test_the_copy_for_a_backend_has_everything_but_the_readme(
    project: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    (project / "docs").mkdir()
    (project / "docs/README.md").write_text("# mine")
    (project / "README.md").unlink()
    (project / "README.md").symlink_to("docs/README.md")
    digest = copy_for_editable(project, ".", tmp_path / "copy")
    assert f"sha256:{digest}" == digest_metadata(project, ".")
    assert (tmp_path / "copy/README.md").read_text() == ""
    assert (project / "docs/README.md").read_text() == "# mine"
    assert (tmp_path / "copy/src/mine/about.py").read_text() == '__version__ = "1.0"\n'


def test_a_linked_directory_is_found_at_its_real_path(project: Path, tmp_path: Path) -> None:
    (project / "link").symlink_to("src/mine")
    assert locate_editable(project, "link") == "src/mine"
    (tmp_path / "alias").symlink_to(project)
    assert locate_editable(tmp_path / "alias", tmp_path / "alias/src") == "src"
    (project / "out").symlink_to(tmp_path)
    for bad in ("out", "..", "nothing", "LICENSE"):
        with pytest.raises(DanluError):
            locate_editable(project, bad)


@pytest.mark.parametrize(
    "text",
    [
        '[project]\nname = "../../etc/passwd"\nreadme = "/etc/passwd"\n',
        '[project]\nreadme = "../../secret"\n[tool.x]\nfile = "\\u0000"\n',
        "project = 3\ntool = 4\nbuild-system = []\n",
        '[tool.setuptools.dynamic]\nversion = { file = ["../secret", "out/secret", "pipe"] }\n',
    ],
)
def test_hostile_metadata_reads_nothing_outside_the_project(
    project: Path, tmp_path: Path, text: str
) -> None:
    (tmp_path / "secret").write_text("secret")
    os.mkfifo(project / "pipe")
    (project / "out").symlink_to(tmp_path)
    (project / "pyproject.toml").write_text(text)
    before = digest_metadata(project, ".")
    copy_for_editable(project, ".", tmp_path / "copy")
    (tmp_path / "secret").write_text("other")
    assert digest_metadata(project, ".") == before
    assert (tmp_path / "secret").read_text() == "other"
