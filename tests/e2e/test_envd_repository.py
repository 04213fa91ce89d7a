"""The build files of envd's own repository build as they are, or name what cannot be reached.

``DANLU_ENVD_REPO`` is a checkout of it, at the commit that the guide names:

    DANLU_ENVD_REPO=~/envd pytest -m slow tests/e2e/test_envd_repository.py

danlu is configured as behind a company's mirrors (:mod:`tests.e2e.envd_mirrors`). The table that
the test prints is the one of ``docs/guides/from-envd.md``, which is compared with the outcomes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from danlu.resolve.lockfile import read_lock
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
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "from-envd.md"
CHOSEN = re.compile(os.environ.get("DANLU_ENVD_FILES", ""))
"""Which of the files to build while working on them; all by default."""

MOUNTED = (".codex", ".cache/huggingface")
"""What build files mount of the user's home directory, and what must exist there."""

#: Seconds of the test, and of each command in it: some download gigabytes, and how long all take
#: depends on the network and on what else the machine does.
_LIMIT = 24 * 60 * 60

_HOST = re.compile(r"\b(?:[a-z0-9-]+\.)+[a-z]{2,}\b")
_FILE_NAME = re.compile(r"\.(?:envd|toml|json|gz|txt|conda|whl|py|R|lock|condarc)$")
_STEP_WITHOUT_NETWORK = re.compile(r"[Cc]ould not resolve host:? ([a-z0-9.-]+)")


@dataclass(frozen=True)
class BuildFileOutcome:
    """The outcome of a build file: ``stage`` is the command that failed, empty for success.

    ``imported`` are the packages that its environment imports.
    """

    file: str
    stage: str = ""
    code: int = 0
    message: str = ""
    imported: tuple[str, ...] = ()

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
        """Whether the file builds, or an unreachable host is reported as the cause."""
        return self.stage in ("", "run") or (self.code in (1, 3) and bool(self.hosts))

    def describe(self) -> str:
        """Return a row of the table."""
        stages = ("lock", "build", "run")
        failed = stages.index(self.stage) if self.stage else len(stages)
        works = " | ".join("yes" if number < failed else "no" for number in range(len(stages)))
        reason = ", ".join(self.hosts)
        if self.stage == "run":
            reason = self.message.rstrip().rpartition("\n")[2]
        elif not self.stage:
            reason = " ".join(self.imported)
        return f"| `{self.file}` | {works} | {reason} |"


@pytest.fixture
def danlu_behind_mirrors(
    real_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Danlu]:
    """The program with a separate home that is configured with the mirrors."""
    home = real_home / "envd"
    danlu = program_in(home, _LIMIT)
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


#: Imports the top-level modules of installed distributions, and prints the names of those that
#: have some.
_IMPORT = """
import importlib, importlib.metadata, sys
for name in sys.argv[1:]:
    try:
        files = importlib.metadata.files(name) or ()
    except importlib.metadata.PackageNotFoundError:
        sys.exit(f"{name} is not installed")
    packages = [file for file in files if len(file.parts) == 2 and file.name == "__init__.py"]
    modules = {file.parts[0] for file in packages}
    modules |= {file.stem for file in files if len(file.parts) == 1 and file.suffix == ".py"}
    for module in sorted(module for module in modules if not module.startswith("_")):
        importlib.import_module(module)
    if modules:
        print("imported", name)
"""


def list_python_packages(project: Path) -> list[str]:
    """Return the locked Python packages that the project's files name."""
    texts = [path.read_text() for path in project.iterdir() if path.name in _DECLARING_FILES]
    words = set(re.findall(r"[a-z0-9][a-z0-9.-]*", "\n".join(texts).lower().replace("_", "-")))
    lock = read_lock((project / "danlu.lock").read_text(), "danlu.lock")
    names = {package.name for each in lock.functions.values() for package in each.packages}
    return sorted(names & words)


_DECLARING_FILES = ("build.envd", "requirements.txt", "env.yaml")


def try_file(file: str, project: Project) -> BuildFileOutcome:
    """Lock and build a file, which nothing changes, and import its Python packages there.

    An environment without Python packages runs a shell.
    """
    copy_project(file, project.directory)
    before = (project.directory / "build.envd").read_bytes()
    for command in (["lock"], ["build", "--frozen"]):
        result = project(*command, check=False)
        assert (project.directory / "build.envd").read_bytes() == before
        if result.returncode:
            return BuildFileOutcome(file, command[0], result.returncode, result.stderr)
    names = list_python_packages(project.directory)
    program = ["python", "-c", _IMPORT, *names] if names else ["sh", "-c", "echo works"]
    result = project("run", "--", *program, check=False)
    if result.returncode:
        return BuildFileOutcome(file, "run", result.returncode, result.stderr)
    lines = result.stdout.splitlines()
    assert names or lines[-1] == "works"
    imported = [line.partition(" ")[2] for line in lines if line.startswith("imported ")]
    return BuildFileOutcome(file, imported=tuple(imported))


@pytest.mark.skipif(not CHECKOUT, reason="DANLU_ENVD_REPO names no checkout of envd")
@pytest.mark.timeout(_LIMIT)
def test_the_files_of_envd_build_unmodified_or_name_the_unreachable_host(
    danlu_behind_mirrors: Danlu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guide = GUIDE.read_text()
    # Rows such as "| `danlu lock` works | 49 |".
    published = [int(number) for number in re.findall(r"^\| .* \| (\d+) \|$", guide, re.M)]
    assert len(published) == 3
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
    built = sum(outcome.stage in ("", "run") for outcome in outcomes)
    running = sum(not outcome.stage for outcome in outcomes)
    with capsys.disabled():
        print(f"{len(outcomes)} files: {locked} lock, {built} build, {running} run")
    assert [outcome for outcome in outcomes if not outcome.works_or_explains] == []
    if not CHOSEN.pattern:
        assert published == [locked, built, running]
        for outcome in outcomes:
            assert bool(outcome.stage) == (f"| `{Path(outcome.file).parent}` |" in guide)
