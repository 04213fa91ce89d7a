"""pylock.toml in and out, and locks checked against declarations."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from danlu.environment.lock import FunctionLock, LockedBase, LockedPackage, LockedPython
from danlu.environment.types import PythonPackages
from danlu.errors import ResolveError
from danlu.resolve.pylock import export_pylock, import_pylock
from danlu.resolve.python_check import unsatisfied
from danlu.sources.pypi import Target

DEBIAN = Target("3.11.2", "glibc 2.36")
A, B = "a" * 64, "b" * 64
C, D = "c-1.0-py3-none-any.whl", "d-1.0-py3-none-any.whl"
HEAD = 'lock-version = "1.0"\ncreated-by = "other"\nrequires-python = ">=3.10"\n'


def write(directory: Path, text: str) -> Path:
    path = directory / "pylock.toml"
    path.write_text(text)
    return path


def entry(name: str, *files: str, extra: str = "") -> str:
    wheels = ", ".join(
        f'{{ url = "https://h/{file}", size = 5, hashes = {{ sha256 = "{A}" }} }}' for file in files
    )
    return f'[[packages]]\nname = "{name}"\nversion = "1.0"\n{extra}wheels = [{wheels}]\n'


def test_the_fitting_wheel_is_taken_without_its_address(tmp_path: Path) -> None:
    files = ("x-1.0-cp311-cp311-win_amd64.whl", "x-1.0-cp311-cp311-manylinux_2_17_x86_64.whl")
    path = write(tmp_path, HEAD + entry("X", *files))
    assert import_pylock(path, DEBIAN) == (LockedPackage("x", "1.0", "index", files[1], A, 5),)


def test_markers_decide_which_packages_apply(tmp_path: Path) -> None:
    file = "{}-1.0-py3-none-any.whl"
    text = HEAD + "".join(
        entry(name, file.format(name), extra=f"marker = {marker!r}\n")
        for name, marker in (
            ("yes", "sys_platform == 'linux' and python_full_version >= '3.11.1'"),
            ("no", "sys_platform == 'win32'"),
            ("group", "'dev' in dependency_groups"),
        )
    )
    assert [one.name for one in import_pylock(write(tmp_path, text), DEBIAN)] == ["yes"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lock-version"),
        ('lock-version = "2.0"', "lock-version"),
        ("not toml", "cannot be read"),
        (HEAD.replace(">=3.10", ">=3.12"), "is for Python"),
        (HEAD + entry("x", "x-1.0-cp39-cp39-win32.whl"), "no file of x"),
        (HEAD + entry("x", "x-1.0-py3-none-any.whl") * 2, "twice"),
        (HEAD + '[[packages]]\nname = "x"\ndirectory = { path = "x" }\n', "directory"),
        (HEAD + '[[packages]]\nname = "x"\nvcs = { type = "git", url = "u" }\n', "repository"),
    ],
)
def test_what_cannot_be_taken_is_told(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ResolveError, match=message):
        import_pylock(write(tmp_path, text), DEBIAN)


def lock(*packages: LockedPackage) -> FunctionLock:
    return FunctionLock(
        platform="linux/amd64",
        base=LockedBase(inputs="", epoch=0, libc="glibc 2.36"),
        python=LockedPython("", "3.11.2", "/usr/bin/python3.11", "apt"),
        packages=packages,
    )


def test_what_goes_out_comes_in_again(tmp_path: Path) -> None:
    packages = (
        LockedPackage("a", "1.0", "index", "a-1.0-py3-none-any.whl", A, 7),
        LockedPackage("b", "2.0", "sdist", "b-2.0.tar.gz", B, 9),
        LockedPackage(
            "c", "1.0", "local", "c-1.0-py3-none-any.whl", A, 1, "w/c-1.0-py3-none-any.whl"
        ),
        LockedPackage(
            "d", "1.0", "url", "d-1.0-py3-none-any.whl", B, 1, "https://h/d-1.0-py3-none-any.whl"
        ),
    )
    urls = {A: "https://h/a-1.0-py3-none-any.whl", B: "https://h/b-2.0.tar.gz"}
    text = export_pylock(lock(*packages), urls)
    assert import_pylock(write(tmp_path, text), DEBIAN) == packages


def test_repositories_and_directories_go_out(tmp_path: Path) -> None:
    commit = "c" * 40
    text = export_pylock(
        lock(
            LockedPackage(
                "g", "", "git", sha256=A, location="https://h/g", commit=commit, subdirectory="x"
            ),
            LockedPackage("l", "", "local", sha256=A, location="pkg"),
        ),
        {},
    )
    packages = tomllib.loads(text)["packages"]
    assert packages[0]["vcs"] == {
        "type": "git",
        "url": "https://h/g",
        "commit-id": commit,
        "subdirectory": "x",
    }
    assert packages[1]["directory"] == {"path": "pkg"}


def test_a_lock_that_fits_has_no_findings(tmp_path: Path) -> None:
    packages = [
        LockedPackage("torch", "2.13.0+cpu", "index", "torch-2.13.0+cpu-py3-none-any.whl", A)
    ]
    declared = [PythonPackages(names=("torch==2.13.0", "never ; sys_platform == 'win32'"))]
    assert unsatisfied(packages, declared, tmp_path, DEBIAN) == []


def test_an_edited_lock_is_found_out(tmp_path: Path) -> None:
    packages = [
        LockedPackage("a", "1.0", "index", "a-1.0-py3-none-any.whl", A),
        LockedPackage("b", "1.0", "index", "b-1.0-cp312-cp312-win_amd64.whl", A),
    ]
    declared = [PythonPackages(names=("A>=2", "c"))]
    found = unsatisfied(packages, declared, tmp_path, DEBIAN)
    assert found == [
        "a is locked at 1.0, declared is A>=2",
        "c is declared and not locked",
        "b-1.0-cp312-cp312-win_amd64.whl does not fit Python 3.11.2 on glibc 2.36",
    ]
