"""Python packages from every kind of source: locked, built, run, and built offline."""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import threading
import time
import tomllib
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Project
from tests.e2e.secrets import find_files_with
from tests.fakes.wheels import make_wheel, sha256_of

pytestmark = pytest.mark.real

PASSWORD = "s3cr3t-word"


class _GuardedIndex(http.server.SimpleHTTPRequestHandler):
    """Serves a directory to users with the password."""

    def do_GET(self) -> None:
        if self.headers.get("Authorization") == "Basic " + b64encode(b"me:s3cr3t-word").decode():
            super().do_GET()
        else:
            self.send_error(401)

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


@pytest.fixture
def index(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The URL, with its password, of a package index, and the directory it serves."""
    directory = tmp_path / "index"
    directory.mkdir()
    handler = functools.partial(_GuardedIndex, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://me:{PASSWORD}@127.0.0.1:{server.server_port}", directory
        server.shutdown()
        thread.join()


def publish(directory: Path, name: str, version: str, **options: object) -> None:
    """Put a wheel with a module ``name`` on an index."""
    files = {f"{name}.py": f"VERSION = {version!r}\n"}
    wheel = make_wheel(directory / name, name, version, files=files, **options)  # type: ignore[arg-type]
    page = directory / name / "index.html"
    links = page.read_text() if page.exists() else "<!DOCTYPE html>\n"
    page.write_text(f'{links}<a href="{wheel.name}#sha256={sha256_of(wheel)}">{wheel.name}</a>\n')


def test_options_in_a_list_of_packages_choose_index_and_version(
    project: Project, index: tuple[str, Path], real_home: Path
) -> None:
    started = time.time()
    url, directory = index
    for version in ("1.0", "2.0rc1"):
        publish(directory, "elixir", version)
    publish(directory, "six", "0.1")
    # As envd's template for torch has it: one call names an index that has not everything.
    others = 'install.python_packages(["tqdm"])'
    project.write(f'install.python_packages(["elixir", "six --index-url {url}"])', others)
    code = "import elixir, six, tqdm; print(elixir.VERSION, six.VERSION)"
    outputs = [project("lock"), project("build"), project("run", "--", "python", "-c", code)]
    assert outputs[-1].stdout.split() == ["1.0", "0.1"], "the index comes before all others"
    again = project("build", "--frozen", "--offline")
    assert "up to date" in again.stderr
    project.write(
        f'install.python_packages(["elixir>=1.5", "six", "-i", "{url}", "--pre"])', others
    )
    outputs.append(project("build", "--progress", "json"))
    assert project.run("python", "-c", code).split() == ["2.0rc1", "0.1"]
    project.write(f'install.python_packages(["elixir==3", "-i", "{url}"])')
    refused = project("build", check=False)
    assert (refused.returncode, "build.envd:3" in refused.stderr) == (2, True)
    project.write(f'install.python_packages(["elixir", "-i", "{url.replace("word", "none")}"])')
    outputs += [refused, project("lock", check=False), project("plan", "--format", "json")]
    for output in outputs:
        assert "s3cr3t" not in output.stdout + output.stderr
    assert find_files_with("s3cr3t", started, real_home) == []
    assert "s3cr3t" not in (project.directory / "danlu.lock").read_text()


def test_an_index_without_pip_suffices_for_a_requirements_file(
    project: Project, index: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, directory = index
    publish(directory, "elixir", "1.0")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    (project.directory / "r.txt").write_text(f"--index-url {url}\nelixir\n")
    project.write('install.python_packages(requirements="r.txt")')
    assert "no index of the project has pip" in project("lock").stderr
    assert project.run("python", "-c", "import elixir; print(elixir.VERSION)") == "1.0"
    assert "up to date" in project("build", "--frozen", "--offline").stderr
    project.write(
        'install.python_packages(["pip"])', 'install.python_packages(requirements="r.txt")'
    )
    assert "pip was not found" in project("lock", check=False).stderr


def test_groups_and_extras_of_a_pyproject_are_installed(project: Project) -> None:
    (project.directory / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\ndependencies = ["six==1.16.0"]\n'
        '[project.optional-dependencies]\nplots = ["tqdm"]\nother = ["nope-does-not-exist"]\n'
        '[dependency-groups]\ntest = ["iniconfig"]\ndev = [{ include-group = "test" }]\n'
    )
    chosen = 'install.python_packages(pyproject="pyproject.toml", groups=["dev"], extras=["plots"])'
    project.write(chosen)
    code = "import iniconfig, six, tqdm; print(six.__version__)"
    assert project.run("python", "-c", code) == "1.16.0"
    assert "up to date" in project("build", "--frozen", "--offline").stderr
    project.write(chosen.replace("dev", "dve"))
    refused = project("lock", check=False)
    assert refused.returncode == 2
    assert "no dependency group 'dve'" in refused.stderr
    assert "did you mean dev?" in refused.stderr


SETUPTOOLS = (
    '[build-system]\nrequires = ["setuptools<80"]\nbuild-backend = "setuptools.build_meta"\n'
    '[project]\nname = "mine"\nversion = "1.0"\n[tool.setuptools]\npackages = ["mine"]\n'
)


def write_package(directory: Path, pyproject: str = SETUPTOOLS) -> None:
    (directory / "mine").mkdir(parents=True, exist_ok=True)
    (directory / "pyproject.toml").write_text(pyproject)
    (directory / "mine/__init__.py").write_text('WORD = "first"\n')


def read_lock_table(project: Project) -> dict[str, Any]:
    """The table of the function in the lock file."""
    lock = tomllib.loads((project.directory / "danlu.lock").read_text())
    table: dict[str, Any] = lock["function"]["build"]
    return table


def test_build_requirements_are_locked_and_nothing_else_is_built_with(
    project: Project, index: tuple[str, Path]
) -> None:
    write_package(project.directory / "lib")
    project.write('install.python_packages(["./lib"])')
    code = "import importlib.metadata as m, mine; print(mine.WORD, m.version('mine'))"
    assert project.run("python", "-c", code) == "first 1.0"
    table = read_lock_table(project)
    (pin,) = next(item["build"] for item in table["packages"] if item["name"] == "mine")
    (wheel,) = table["build_packages"]
    assert pin == f"setuptools=={wheel['version']}"
    assert int(wheel["version"].split(".")[0]) < 80
    assert "url" not in wheel
    assert "up to date" in project("build", "--frozen", "--offline").stderr
    # A newer build tool on an index changes nothing.
    url, directory = index
    publish(directory, "setuptools", "79.9")
    (project.directory / "lib/mine/__init__.py").write_text('WORD = "second"\n')
    project.write(f'install.python_packages(["./lib", "--extra-index-url {url}"])')
    project("lock")
    project("build", "--frozen", "--offline")
    (changed,) = read_lock_table(project)["build_packages"]
    assert project.run("python", "-c", code) == "second 1.0"
    assert changed == wheel
    # The lock of an older version lacks them: it is read, and completed.
    project.write('install.python_packages(["./lib"])')
    project("lock")
    lock = project.directory / "danlu.lock"
    text = lock.read_text()
    old = re.sub(r"(?ms)^build_packages = \[.*?^\]\n", "", text).replace(f', build = ["{pin}"]', "")
    lock.write_text(re.sub("(?m)^digest = .*\n", "", old))
    assert "build requirements changed" in project("build", "--frozen", check=False).stderr
    project("build")
    assert lock.read_text() == text


@pytest.mark.slow
def test_build_settings_of_this_machine_reach_every_build(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata is that of what is installed: one build must not differ from the other."""
    version = '[tool.setuptools.dynamic]\nversion = { attr = "six.__version__" }\n'
    text = SETUPTOOLS.replace("setuptools<80", "setuptools").replace(
        'version = "1.0"', 'dynamic = ["version"]'
    )
    write_package(project.directory / "lib", text + version)
    (project.directory / "lib/setup.py").write_text(
        "import setuptools, six\nassert int(setuptools.__version__.split('.')[0]) < 70\n"
        "setuptools.setup()\n"
    )
    (project.directory / "limits.txt").write_text("setuptools<70\n")
    (project.directory / "uv.toml").write_text(
        'build-constraint-dependencies = ["six==1.16.0"]\n'
        '[extra-build-dependencies]\nmine = ["six"]\n'
    )
    monkeypatch.setenv("PIP_BUILD_CONSTRAINT", str(project.directory / "limits.txt"))
    project.write('install.python_packages(["./lib"])')
    code = "import importlib.metadata as m; print(m.version('mine'))"
    assert project.run("python", "-c", code) == "1.16.0"
    (mine,) = (item for item in read_lock_table(project)["packages"] if item["name"] == "mine")
    assert mine["version"] == "1.16.0"
    # Another limit is applied although the package did not change.
    (project.directory / "uv.toml").write_text(
        'build-constraint-dependencies = ["six==1.15.0"]\n'
        '[extra-build-dependencies]\nmine = ["six"]\n'
    )
    project.write('install.python_packages(["./lib", "iniconfig"])')
    assert project.run("python", "-c", code) == "1.15.0"


HATCH_VCS = """\
[build-system]
requires = ["hatchling", "hatch-vcs"]
build-backend = "hatchling.build"
[project]
name = "mine"
dynamic = ["version"]
[tool.hatch.version]
source = "vcs"
"""
SETUPTOOLS_SCM = """\
[build-system]
requires = ["setuptools>=64", "setuptools-scm>=8"]
build-backend = "setuptools.build_meta"
[project]
name = "mine"
dynamic = ["version"]
[tool.setuptools_scm]
[tool.setuptools]
packages = ["mine"]
"""


@pytest.mark.slow
@pytest.mark.parametrize(("pyproject", "name"), [(HATCH_VCS, "-e ."), (SETUPTOOLS_SCM, ".")])
def test_a_version_derived_from_git_is_locked_and_built(
    project: Project, monkeypatch: pytest.MonkeyPatch, pyproject: str, name: str
) -> None:
    write_package(project.directory, pyproject)
    (project.directory / "mine/words.txt").write_text("tracked\n")
    project.write(f'install.python_packages(["{name}"])')
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(project.directory)]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "1"], ["tag", "v1.2"]):
        subprocess.run([*git, *arguments], check=True)
    (project.directory / "mine/words.txt").write_text("changed\n")
    subprocess.run([*git, "commit", "-qam", "2"], check=True)
    code = "import importlib.metadata as m, mine; print(m.version('mine')); "
    code += "print(open(mine.__file__.replace('__init__.py', 'words.txt')).read())"
    version, word = project.run("python", "-c", code).split()
    assert re.fullmatch(r"1\.3\.dev1\+g[0-9a-f]+", version)
    assert word == "changed"
    assert "up to date" in project("build", "--frozen", "--offline").stderr
    (project.directory / "danlu.lock").unlink()
    monkeypatch.setenv("SETUPTOOLS_SCM_PRETEND_VERSION", "7.5")
    project("lock")
    monkeypatch.delenv("SETUPTOOLS_SCM_PRETEND_VERSION")
    assert project.run("python", "-c", code).split()[0] == "7.5"


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        ('["danlu-no-such-backend-ever"]', "build requirements of mine: "),
        ('["x @ file:///etc/passwd"]', "is a URL, which cannot be locked"),
        ('["not a name"]', "invalid build requirement"),
        ('"setuptools"', "pyproject.toml of mine is invalid"),
    ],
)
def test_build_requirements_that_cannot_be_locked_are_one_error(
    project: Project, requires: str, message: str
) -> None:
    write_package(project.directory / "lib", SETUPTOOLS.replace('["setuptools<80"]', requires))
    project.write('install.python_packages(["./lib"])')
    refused = project("lock", check=False)
    assert refused.returncode == 2, refused.stderr
    assert message in refused.stderr
    assert not (project.directory / "danlu.lock").exists()


@pytest.mark.slow
def test_directories_and_repositories_of_a_pylock_are_built(project: Project) -> None:
    write_package(project.directory / "lib")
    other = SETUPTOOLS.replace('"mine"', '"theirs"')
    write_package(project.directory / "repository", other)
    (project.directory / "repository/mine").rename(project.directory / "repository/theirs")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", "repository"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *arguments], cwd=project.directory, check=True)
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], cwd=project.directory, check=True, capture_output=True
    ).stdout.decode()
    (project.directory / "pylock.toml").write_text(
        'lock-version = "1.0"\ncreated-by = "test"\n'
        '[[packages]]\nname = "mine"\ndirectory = { path = "lib" }\n'
        f'[[packages]]\nname = "theirs"\nvcs = {{ type = "git", commit-id = "{commit.strip()}", '
        f'url = "{(project.directory / "repository").as_uri()}" }}\n'
    )
    project.write('install.python_packages(requirements="pylock.toml")')
    # The versions of repositories and directories are known only once they have been built.
    locked = project("lock").stderr
    assert re.search(rf"^locked Python packages mine lib, .*theirs {commit[:12]}", locked, re.M)
    code = "import mine, theirs; print(mine.WORD, theirs.WORD)"
    assert project.run("python", "-c", code) == "first first"
    assert "up to date" in project("build", "--frozen", "--offline").stderr
    (project.directory / "lib/mine/__init__.py").write_text('WORD = "second"\n')
    assert project("build", "--frozen", check=False).returncode == 2
    assert project.run("python", "-c", code) == "second first"


def test_added_packages_are_locked_or_nothing_changes(project: Project) -> None:
    project.write('install.python_packages(name=["six"])  # kept')
    file, lock = project.directory / "build.envd", project.directory / "danlu.lock"
    added = project("add", "tqdm", "Packaging>=20")
    assert re.search(r"^locked Python packages .*\bpackaging 2\d.*\btqdm \d", added.stderr, re.M)
    assert added.stderr.endswith("wrote build.envd, danlu.lock\n")
    assert '["six", "tqdm", "Packaging>=20"])  # kept\n' in file.read_text()
    # The requirement is another one, and every version stays.
    assert project("add", "tqdm>1").stderr.endswith("…\nwrote build.envd, danlu.lock\n")
    before = file.read_bytes(), lock.read_bytes()
    failed = project("add", "six>99", check=False)
    assert failed.returncode == 2
    assert "build.envd is as before" in failed.stderr
    assert (file.read_bytes(), lock.read_bytes()) == before
    removed = project("remove", "packaging", "six")
    assert "no longer needed: Python packages packaging, six" in removed.stderr
    assert 'install.python_packages(name=["tqdm>1"])  # kept' in file.read_text()
    project("lock", "--check")


def test_a_lock_with_conflict_markers_is_merged_with_the_versions_of_both_sides(
    project: Project, index: tuple[str, Path], tmp_path: Path
) -> None:
    url, directory = index
    for name in ("common", "left", "right"):
        publish(directory, name, "1.0")
    sides: dict[str, str] = {}
    for names in ("common", "common left", "common right"):
        requirements = [f'"{name} --index-url {url}"' for name in names.split()]
        project.write(f"install.python_packages([{', '.join(requirements)}])")
        if sides:
            (project.directory / "danlu.lock").write_text(sides["common"])
        project("lock")
        sides[names] = (project.directory / "danlu.lock").read_text()
    # Newer versions that neither branch has locked.
    for name in ("common", "left", "right"):
        publish(directory, name, "2.0")
    files = [tmp_path / name for name in ("ours", "base", "theirs")]
    for file, names in zip(files, ("common left", "common", "common right"), strict=True):
        file.write_text(sides[names])
    merged = subprocess.run(
        ["git", "merge-file", "-p", *map(str, files)], capture_output=True, text=True, check=False
    )
    assert "<<<<<<<" in merged.stdout
    lock = project.directory / "danlu.lock"
    lock.write_text(merged.stdout)
    requirements = [f'"{name} --index-url {url}"' for name in ("common", "left", "right")]
    project.write(f"install.python_packages([{', '.join(requirements)}])")
    refused = project("build", check=False)
    assert refused.returncode == 2
    assert "danlu.lock has merge conflicts" in refused.stderr
    assert "run `danlu lock`" in refused.stderr
    assert lock.read_text() == merged.stdout
    assert "merged both sides" in project("lock").stderr
    packages = tomllib.loads(lock.read_text())["function"]["build"]["packages"]
    versions = {package["name"]: package["version"] for package in packages}
    assert {name: versions[name] for name in ("common", "left", "right")} == {
        "common": "1.0",
        "left": "1.0",
        "right": "1.0",
    }
    project("lock", "--check")
