"""The version that a package derives from git reaches its build without the repository."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest

from danlu.errors import OutsideError
from danlu.sources import git
from danlu.sources.pypi.scm_version import list_version_variables, write_description

PYPROJECT = '[build-system]\nrequires = ["setuptools", "setuptools-scm[toml]>=6"]\n'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "repository"
    directory.mkdir()
    (directory / "pyproject.toml").write_text(PYPROJECT)
    run_git(directory, "init", "-q")
    run_git(directory, "add", ".")
    run_git(directory, "commit", "-qm", "one")
    return directory


def run_git(directory: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(directory)]
    subprocess.run([*command, *arguments], check=True, capture_output=True)


def test_the_last_tag_with_a_digit_is_described(repository: Path) -> None:
    description, commit = git.describe(repository)
    assert description == f"0.0-1-g{commit}", "as setuptools-scm counts without tags"
    run_git(repository, "tag", "v2.0")
    run_git(repository, "commit", "--allow-empty", "-qm", "two")
    run_git(repository, "tag", "nightly")
    description, commit = git.describe(repository)
    assert description == f"v2.0-1-g{commit}"


def test_no_repository_has_no_description(tmp_path: Path) -> None:
    with pytest.raises(OutsideError):
        git.describe(tmp_path)


def test_programs_that_a_repository_configures_are_not_run(repository: Path) -> None:
    ran = repository / "ran"
    for name in ("core.fsmonitor", "core.sshCommand", "remote.origin.uploadpack", "core.pager"):
        run_git(repository, "config", name, f"touch {ran}")
    for name, value in (("url", "ssh://h/x"), ("promisor", "true")):
        run_git(repository, "config", f"remote.origin.{name}", value)
    run_git(repository, "config", "protocol.ssh.allow", "always")
    run_git(repository, "config", "extensions.partialClone", "origin")
    run_git(repository, "config", "core.repositoryFormatVersion", "1")
    _, commit = git.describe(repository)
    (repository / ".git/objects" / commit[:2] / commit[2:]).unlink()
    with pytest.raises(OutsideError):
        git.describe(repository)
    assert not ran.exists()


def test_the_description_is_written_only_for_packages_that_use_it(
    tmp_path: Path, repository: Path
) -> None:
    describe = partial(git.describe, repository)
    write_description(tmp_path, describe)
    assert not (tmp_path / ".git_archival.txt").exists()
    (tmp_path / "setup.py").write_text("setup(use_scm_version=True, requires=['setuptools_scm'])")
    (tmp_path / "secret").write_text("mine")
    (tmp_path / ".git_archival.txt").symlink_to("secret")
    write_description(tmp_path, describe)
    assert "describe-name: 0.0-1-g" in (tmp_path / ".git_archival.txt").read_text()
    assert (tmp_path / "secret").read_text() == "mine"


def test_variables_that_decide_versions_are_passed() -> None:
    variables = {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_MINE": "1", "SECRET": "2"}
    assert list_version_variables(variables) == {"SETUPTOOLS_SCM_PRETEND_VERSION_FOR_MINE": "1"}
