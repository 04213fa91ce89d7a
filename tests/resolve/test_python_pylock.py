"""pylock.toml in and out, and such a file checked against what is declared beside it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace

from danlu.environment.lock import FunctionLock, LockedBase, LockedPackage, LockedPython
from danlu.environment.types import PythonPackages
from danlu.errors import ResolveError, UsageError
from danlu.resolve.pylock import check_pylock_name, export_pylock, import_pylock
from danlu.resolve.python_check import unsatisfied
from danlu.resolve.python_wanted import Wanted, gather
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
            "c", "1.0", "local", "c-1.0-py3-none-any.whl", A, 1, "w #1/c-1.0-py3-none-any.whl"
        ),
        LockedPackage(
            "d", "1.0", "url", "d-1.0-py3-none-any.whl", B, 1, "https://h/d-1.0-py3-none-any.whl"
        ),
    )
    urls = {A: "file:///links%20of/a-1.0-py3-none-any.whl", B: "https://h/b-2.0.tar.gz"}
    beside = tmp_path / "locks"
    beside.mkdir()
    text = export_pylock(lock(*packages), urls, project=tmp_path, directory=beside)
    places = {one["name"]: one for one in tomllib.loads(text)["packages"]}
    assert places["a"]["wheels"][0]["path"] == "/links of/a-1.0-py3-none-any.whl"
    assert places["c"]["archive"]["path"] == "../w #1/c-1.0-py3-none-any.whl"
    assert import_pylock(write(beside, text), DEBIAN, project=tmp_path) == packages


def test_repositories_and_directories_go_out(tmp_path: Path) -> None:
    commit = "c" * 40
    git = LockedPackage(
        "g", "1.0", "git", sha256=A, location="https://h/g", commit=commit, subdirectory="x"
    )
    directory = LockedPackage("l", "1.0", "local", sha256=A, location="pkg")
    text = export_pylock(
        lock(replace(git, ref="main"), directory), {}, project=tmp_path, directory=tmp_path
    )
    packages = tomllib.loads(text)["packages"]
    assert packages[0]["vcs"] == {
        "type": "git",
        "url": "https://h/g",
        "requested-revision": "main",
        "commit-id": commit,
        "subdirectory": "x",
    }
    assert packages[1]["directory"] == {"path": "pkg"}
    assert not any("version" in one for one in packages)


@pytest.mark.parametrize("name", ["pylock.toml", "pylock.gpu.toml"])
def test_names_that_installers_know_are_taken(name: str) -> None:
    check_pylock_name(name)


@pytest.mark.parametrize("name", ["lock.toml", "pylock.a.b.toml", "pylock..toml", "pylock", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is no name"):
        check_pylock_name(name)


def declared(tmp_path: Path, *names: str) -> Wanted:
    return gather([PythonPackages(names=names)], tmp_path, DEBIAN)


def test_a_set_that_has_what_is_declared_has_no_findings(tmp_path: Path) -> None:
    packages = [
        LockedPackage("torch", "2.13.0+cpu", "index", "torch-2.13.0+cpu-py3-none-any.whl", A)
    ]
    wanted = declared(tmp_path, "torch==2.13.0", "never ; sys_platform == 'win32'")
    assert unsatisfied(packages, wanted, DEBIAN) == []


def test_what_a_set_lacks_is_told(tmp_path: Path) -> None:
    packages = [LockedPackage("a", "1.0", "index", "a-1.0-py3-none-any.whl", A)]
    wanted = declared(tmp_path, "A>=2", "c", "g @ git+https://h/g")
    assert unsatisfied(packages, wanted, DEBIAN) == [
        "g @ git+https://h/g is built from source, so it cannot be in it",
        "it has a 1.0, declared is A>=2",
        "it does not have c",
    ]
