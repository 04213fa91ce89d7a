"""Which files in a package's directory are source, and which are output of tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.errors import DanluError
from danlu.sources.pypi.source_tree import copy_source, digest_source


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    (project / "mine").mkdir(parents=True)
    (project / "pyproject.toml").write_text("[project]\n")
    (project / "mine/__init__.py").write_text("x = 1\n")
    return project


@pytest.mark.parametrize(
    "made",
    [
        *("danlu.lock", ".danluignore", ".danlu/state", ".git/HEAD", ".hg/store", ".svn/entries"),
        *("build/lib/mine/__init__.py", "dist/mine-1.tar.gz", "mine.egg-info/PKG-INFO"),
        *("mine/__pycache__/x.pyc", "src/mine.egg-info/SOURCES.txt", ".venv/bin/python"),
        *("mine/danlu.lock", "mine/.danlu-x.py", "mine/.DS_Store", "mine/.coverage", "mine/x.pyo"),
        *(".pytest_cache/v", "mine/sub/__pycache__/y.pyc", ".tox/x", "old.pyc", ".eggs/x"),
    ],
)
def test_output_of_tools_is_not_source(project: Path, tmp_path: Path, made: str) -> None:
    before = digest_source(project, ".")
    (project / made).parent.mkdir(parents=True, exist_ok=True)
    (project / made).write_text("")
    after = copy_source(project, ".", tmp_path / "copy")
    assert not (tmp_path / "copy" / made).exists()
    if made.startswith(("src/", "mine/sub/")):
        return  # the directory that holds it is new, and is source
    assert digest_source(project, ".") == before == f"sha256:{after}"


@pytest.mark.parametrize(
    "made",
    [
        *("model.pt", "metrics.json", "train.log", "events.out.tfevents.1", "data/rows.csv"),
        *("wandb/run-1/files/code/train.py", "outputs/2026-11-22/.hydra/config.yaml"),
        *("runs/events", "checkpoints/modeling.py", "results/plot.png"),
        *("runs/train.py", "lightning_logs/a.py", "mlruns/a.py", "multirun/a.py", "tb_logs/a.py"),
    ],
)
def test_output_of_runs_is_not_source(project: Path, tmp_path: Path, made: str) -> None:
    before = digest_source(project, ".")
    (project / made).parent.mkdir(parents=True, exist_ok=True)
    (project / made).write_text("")
    assert digest_source(project, ".") == before
    copy_source(project, ".", tmp_path / "copy")
    assert not (tmp_path / "copy" / made).exists()


@pytest.mark.parametrize(
    ("made", "metadata", "text"),
    [
        ("data/rows.csv", "MANIFEST.in", "recursive-include data *"),
        ("rows.csv", "MANIFEST.in", "include *.csv"),
        ("VERSION", "setup.cfg", "[metadata]"),
        ("notes.txt", "setup.py", "open('notes.txt')"),
        ("LICENSE.txt", "setup.cfg", "[metadata]"),
        ("csrc/op.cu", "setup.cfg", "[metadata]"),
        ("mine/rows.csv", "setup.cfg", "[metadata]"),
    ],
)
def test_data_that_the_metadata_names_is_source(
    project: Path, made: str, metadata: str, text: str
) -> None:
    (project / metadata).write_text(text)
    before = digest_source(project, ".")
    (project / made).parent.mkdir(parents=True, exist_ok=True)
    (project / made).write_text("")
    assert digest_source(project, ".") != before


@pytest.mark.parametrize(
    "suffix",
    [
        *(".py", ".pyi", ".pyx", ".pxd", ".pxi", ".ipynb", ".c", ".cc", ".cpp", ".cxx", ".cu"),
        *(".cuh", ".f", ".f90", ".go", ".h", ".hh", ".hpp", ".rs", ".swg"),
        *(".build", ".cfg", ".cmake", ".in", ".toml"),
    ],
)
def test_code_of_every_language_that_backends_build_is_source(project: Path, suffix: str) -> None:
    before = digest_source(project, ".")
    (project / "native").mkdir()
    (project / f"native/x{suffix}").write_text("")
    assert digest_source(project, ".") != before


@pytest.mark.parametrize("name", ["build", "dist", "mine/build", "mine/dist"])
def test_an_import_package_with_the_name_of_an_output_is_source(project: Path, name: str) -> None:
    before = digest_source(project, ".")
    (project / name).mkdir()
    (project / name / "__init__.py").write_text("")
    assert digest_source(project, ".") != before


def test_an_edit_of_the_source_is_noticed_and_ignored_files_are_not(project: Path) -> None:
    before = digest_source(project, ".")
    (project / "mine/__init__.py").write_text("x = 2\n")
    edited = digest_source(project, ".")
    assert edited != before
    (project / ".gitignore").write_text("*.log\n")
    with_ignore = digest_source(project, ".")
    (project / "a.log").write_text("")
    assert digest_source(project, ".") == with_ignore


def test_a_linked_directory_of_the_project_is_its_content(project: Path, tmp_path: Path) -> None:
    (project / "libs").mkdir()
    (project / "libs/setup.py").write_text("1")
    (project / "link").symlink_to("libs")
    assert digest_source(project, "link") == digest_source(project, "libs")
    copy_source(project, "link", tmp_path / "copy")
    assert (tmp_path / "copy/setup.py").read_text() == "1"


def test_a_source_outside_the_project_is_refused(project: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (project / "link").symlink_to(tmp_path / "other")
    for source in ("../other", "link", str(tmp_path / "other")):
        with pytest.raises(DanluError, match=r"outside the project|leads out"):
            copy_source(project, source, tmp_path / source.replace("/", "_"))
