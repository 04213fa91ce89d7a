"""The build files of envd's own repository build as they are, or name what cannot be reached.

``DANLU_ENVD_REPO`` is a checkout of it:

    DANLU_ENVD_REPO=~/envd pytest -m slow -s tests/e2e/test_envd_repository.py

danlu is configured as behind a company's mirrors (:mod:`tests.e2e.envd_mirrors`). The table that
the test prints is the one of ``docs/guides/from-envd.md``.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Danlu, program_in, remove_tree
from tests.e2e.conftest import Project
from tests.e2e.envd_mirrors import (
    build_images,
    git_environment,
    pip_environment,
    write_mirrors,
)

pytestmark = [pytest.mark.real, pytest.mark.slow]

CHECKOUT = os.environ.get("DANLU_ENVD_REPO", "")
CHOSEN = re.compile(os.environ.get("DANLU_ENVD_FILES", ""))
"""Which of the files to build while working on them; all by default."""

MOUNTED = (".codex", ".cache/huggingface")
"""What build files mount of the user's home directory, and what must exist there."""

_HOST = re.compile(r"\b(?:[a-z0-9-]+\.)+[a-z]{2,}\b")
_FILE_NAME = re.compile(r"\.(?:envd|toml|json|gz|txt|conda|whl|py|R|lock|condarc)$")
_STEP_WITHOUT_NETWORK = re.compile(r"[Cc]ould not resolve host:? ([a-z0-9.-]+)")


@dataclass(frozen=True)
class BuildFileOutcome:
    """The outcome of a build file: ``stage`` is the command that failed, empty for success."""

    file: str
    stage: str = ""
    code: int = 0
    message: str = ""

    @property
    def hosts(self) -> list[str]:
        """The hosts that the failure names."""
        if result := _STEP_WITHOUT_NETWORK.findall(self.message):
            return list(dict.fromkeys(result))
        lines = self.message[self.message.find("error:") :].splitlines()
        # What the build file says is quoted with its line number.
        output = " ".join(line for line in lines if not re.match(r"\s*(\d*\s*\||-->|hint)", line))
        names = dict.fromkeys(_HOST.findall(output))
        return [name for name in names if not _FILE_NAME.search(name)]

    @property
    def works_or_explains(self) -> bool:
        """Whether the file works, or an unreachable host is reported as the cause."""
        return not self.stage or (self.code in (1, 3) and bool(self.hosts))

    def describe(self) -> str:
        """Return a row of the table."""
        works = {"lock": "no | no", "build": "yes | no", "run": "yes | no", "": "yes | yes"}
        reason = ", ".join(self.hosts) if self.stage else ""
        return f"| `{self.file}` | {works[self.stage]} | {reason} |"


@pytest.fixture
def danlu_behind_mirrors(
    real_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Danlu]:
    """The program with a separate home that is configured with the mirrors."""
    home = real_home / "envd"
    danlu = program_in(home)
    mirrors = tmp_path / "mirrors"
    mirrors.mkdir()
    build_images(danlu, mirrors)
    write_mirrors(danlu, mirrors, home / "config" / "config.toml", Path(CHECKOUT))
    for name, value in {**git_environment(mirrors), **pip_environment(mirrors)}.items():
        monkeypatch.setenv(name, value)
    created = [directory for name in MOUNTED if not (directory := Path.home() / name).exists()]
    for directory in created:
        directory.mkdir(parents=True)
    yield danlu
    for directory in created:
        directory.rmdir()
    if "DANLU_TEST_HOME" not in os.environ:
        remove_tree(home)


def copy_project(file: str, target: Path) -> None:
    """Copy the directory of a build file, or only the file if it is among envd's sources."""
    source = Path(CHECKOUT, file)
    if file.startswith("pkg/") or source.parent == Path(CHECKOUT):
        target.mkdir()
        shutil.copyfile(source, target / "build.envd")
    else:
        shutil.copytree(source.parent, target)


def try_file(file: str, project: Project) -> BuildFileOutcome:
    """Lock, build and run a file, which nothing changes."""
    copy_project(file, project.directory)
    before = (project.directory / "build.envd").read_bytes()
    commands = (["lock"], ["build", "--frozen"], ["run", "--", "sh", "-c", "echo works"])
    for command in commands:
        result = project(*command, check=False)
        assert (project.directory / "build.envd").read_bytes() == before
        if result.returncode:
            return BuildFileOutcome(file, command[0], result.returncode, result.stderr)
    assert result.stdout.splitlines()[-1] == "works"
    return BuildFileOutcome(file)


@pytest.mark.skipif(not CHECKOUT, reason="DANLU_ENVD_REPO names no checkout of envd")
@pytest.mark.timeout(3 * 60 * 60)
def test_the_files_of_envd_build_unmodified_or_name_the_unreachable_host(
    danlu_behind_mirrors: Danlu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = (str(path.relative_to(CHECKOUT)) for path in Path(CHECKOUT).rglob("*.envd"))
    outcomes = []
    for number, file in enumerate(sorted(filter(CHOSEN.search, paths))):
        directory = tmp_path / f"project-{number}"
        outcome = try_file(file, Project(directory, danlu_behind_mirrors))
        shutil.rmtree(directory)
        outcomes.append(outcome)
        with capsys.disabled():
            print(outcome.describe(), flush=True)
            if not outcome.works_or_explains:
                print(outcome.message, flush=True)
    locked = sum(outcome.stage != "lock" for outcome in outcomes)
    working = sum(not outcome.stage for outcome in outcomes)
    with capsys.disabled():
        print(f"{len(outcomes)} files: {locked} lock, {working} build and run")
    assert [outcome for outcome in outcomes if not outcome.works_or_explains] == []
    if not CHOSEN.pattern:
        assert locked >= 45
        assert working >= 30
