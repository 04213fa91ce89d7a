"""Source distributions, directories and repositories: built inside, never on this machine."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.wheels import make_wheel

pytestmark = pytest.mark.real

Danlu = Callable[..., subprocess.CompletedProcess[str]]

#: A build backend in the package itself, so that building downloads nothing.
BACKEND = """
import os, zipfile
NAME, VERSION = {name!r}, "1.5"
def _say():
    open("/tmp/danlu-test-ran-here", "w").close()
    assert os.getuid() != 0, "a build has no rights"
def get_requires_for_build_wheel(config_settings=None):
    return []
def prepare_metadata_for_build_wheel(directory, config_settings=None):
    _say()
    info = f"{{NAME}}-{{VERSION}}.dist-info"
    os.makedirs(os.path.join(directory, info))
    with open(os.path.join(directory, info, "METADATA"), "w") as file:
        file.write(f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: {{VERSION}}\\n")
    return info
def build_wheel(directory, config_settings=None, metadata_directory=None):
    _say()
    {special}
    name = f"{{NAME}}-{{VERSION}}-py3-none-any.whl"
    info = f"{{NAME}}-{{VERSION}}.dist-info"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        archive.writestr(f"{{NAME}}.py", "where = 'inside'\\n")
        archive.writestr(f"{{info}}/METADATA",
            f"Metadata-Version: 2.1\\nName: {{NAME}}\\nVersion: {{VERSION}}\\n")
        archive.writestr(f"{{info}}/WHEEL",
            "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        archive.writestr(f"{{info}}/RECORD",
            f"{{NAME}}.py,,\\n{{info}}/METADATA,,\\n{{info}}/WHEEL,,\\n{{info}}/RECORD,,\\n")
    return name
"""


def source_tree(directory: Path, name: str, special: str = "pass") -> Path:
    directory.mkdir(parents=True)
    (directory / "backend.py").write_text(BACKEND.format(name=name, special=special))
    (directory / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        f'[project]\nname = "{name}"\ndynamic = ["version"]\n'
    )
    return directory


def pack(tree: Path, directory: Path) -> None:
    """Put the source distribution of ``NAME-VERSION`` into ``directory``."""
    name, version = tree.name.split("-")
    (tree / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    directory.mkdir(parents=True)
    with tarfile.open(directory / f"{tree.name}.tar.gz", "w:gz") as archive:
        archive.add(tree, arcname=tree.name)


def write_build(project: Path, *names: str, more: str = "") -> None:
    listing = ", ".join(repr(name) for name in names)
    (project / "build.envd").write_text(
        "def build():\n    base(os='debian12')\n    install.python()\n"
        f"    install.python_packages([{listing}])\n{more}"
    )


@pytest.fixture(autouse=True)
def _not_here() -> None:
    Path("/tmp/danlu-test-ran-here").unlink(missing_ok=True)


def test_every_kind_of_source_is_built_inside(danlu: Danlu, tmp_path: Path) -> None:
    project = tmp_path / "project"
    source_tree(project / "local", "fromdir")
    repository = source_tree(project / "repository", "fromgit")
    for args in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"],
        ["tag", "v1"],
    ):
        subprocess.run(["git", *args], cwd=repository, check=True)
    tree = source_tree(tmp_path / "fromsdist-1.5", "fromsdist")
    pack(tree, project / "links")
    (project / "requirements.txt").write_text(
        f"--find-links ./links\nfromsdist\n./local\ngit+{repository.as_uri()}@v1\n"
    )
    write_build(project, more="    install.python_packages(requirements='requirements.txt')\n")
    danlu("build", cwd=project)
    assert not Path("/tmp/danlu-test-ran-here").exists()
    code = (
        "import fromdir, fromgit, fromsdist; print(fromdir.where, fromgit.where, fromsdist.where)"
    )
    assert danlu("run", "--", "python", "-c", code, cwd=project).stdout.split() == ["inside"] * 3
    lock = (project / "danlu.lock").read_text()
    assert lock.count('version = "1.5"') == 3
    assert 'source = "git"' in lock
    (project / "links" / "fromsdist-1.5.tar.gz").unlink()
    again = danlu("build", "--frozen", "--offline", cwd=project)
    assert "up to date" in again.stderr


def test_no_binary_package_is_built_in_the_sandbox(danlu: Danlu, tmp_path: Path) -> None:
    project = tmp_path / "project"
    pack(source_tree(tmp_path / "both-1.5", "both"), project / "links")
    make_wheel(project / "links", "both", "1.5", files={"both.py": "where = 'wheel'\n"})
    make_wheel(project, "mine", "1.0", files={"mine.py": ""})
    write_build(project, more="    install.python_packages(requirements='requirements.txt')\n")
    for option, where in (("--no-binary=both", "inside"), ("--only-binary :all:", "wheel")):
        (project / "requirements.txt").write_text(
            f"--find-links ./links\n{option}\nboth\n./mine-1.0-py3-none-any.whl\n"
        )
        output = danlu("run", "--", "python", "-c", "import both; print(both.where)", cwd=project)
        assert output.stdout.strip() == where
    assert not Path("/tmp/danlu-test-ran-here").exists()


def test_failed_build_shows_its_last_lines(danlu: Danlu, tmp_path: Path) -> None:
    source_tree(tmp_path / "bad", "bad", special="raise SystemExit('no compiler here')")
    write_build(tmp_path, "./bad")
    result = danlu("build", cwd=tmp_path, check=False)
    assert result.returncode == 1
    assert "no compiler here" in result.stderr
    assert "apt_packages" in result.stderr


def test_a_build_cannot_hand_out_a_file_of_this_machine(danlu: Danlu, tmp_path: Path) -> None:
    special = (
        "os.symlink('/etc/shadow', os.path.join(directory, NAME + '-1.5-py3-none-any.whl'));"
        " return NAME + '-1.5-py3-none-any.whl'"
    )
    source_tree(tmp_path / "thief", "thief", special=special)
    write_build(tmp_path, "./thief")
    result = danlu("build", cwd=tmp_path, check=False)
    assert result.returncode != 0
    assert "root:" not in result.stdout + result.stderr


def test_a_directory_that_changed_is_built_again(danlu: Danlu, tmp_path: Path) -> None:
    tree = source_tree(tmp_path / "pkg", "pkg")
    write_build(tmp_path, "./pkg")
    danlu("build", cwd=tmp_path)
    (tree / "backend.py").write_text((tree / "backend.py").read_text().replace("inside", "new"))
    danlu("lock", "--upgrade", cwd=tmp_path)
    danlu("build", cwd=tmp_path)
    output = danlu("run", "--", "python", "-c", "import pkg; print(pkg.where)", cwd=tmp_path)
    assert output.stdout.strip() == "new"
