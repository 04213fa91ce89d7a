"""Import and export of pylock.toml, and its check against the declared packages."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace

from danlu.environment.lock import FunctionLock, LockedBase, LockedPackage, LockedPython
from danlu.environment.types import PythonPackages
from danlu.errors import ResolveError, UsageError
from danlu.resolve.python.lock_files import find_conflicts
from danlu.resolve.python.pylock import (
    check_pylock_name,
    export_pylock,
    files_outside,
    import_pylock,
)
from danlu.resolve.python.requirements import DeclaredRequirements, collect_requirements
from danlu.sources.pypi.platform_target import PlatformTarget

DEBIAN = PlatformTarget("3.11.2", "glibc 2.36")
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
    assert [package.name for package in import_pylock(write(tmp_path, text), DEBIAN)] == ["yes"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lock-version"),
        ('lock-version = "2.0"', "lock-version"),
        ("not toml", "is not valid TOML"),
        (HEAD.replace(">=3.10", ">=3.12"), "requires Python"),
        (HEAD + entry("x", "x-1.0-cp39-cp39-win32.whl"), "no file for x"),
        (HEAD + entry("x", "x-1.0-py3-none-any.whl") * 2, "twice"),
        (HEAD + '[[packages]]\nname = "x"\nvcs = { type = "hg" }\n', "not a commit of git"),
        (
            HEAD
            + f'[[packages]]\nname = "x"\nvcs = {{ type = "git", commit-id = "{"a" * 40}" }}\n',
            "has no URL",
        ),
        (
            HEAD + '[[packages]]\nname = "x"\ndirectory = { path = "x", subdirectory = "../y" }\n',
            "outside its source",
        ),
        (HEAD + '[[packages]]\nname = "x"\nvcs = { type = "git", url = "u" }\n', "VCS entry"),
    ],
)
def test_an_unusable_pylock_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ResolveError, match=message):
        import_pylock(write(tmp_path, text), DEBIAN)


def lock(*packages: LockedPackage) -> FunctionLock:
    return FunctionLock(
        platform="linux/amd64",
        base=LockedBase(inputs="", epoch=0, libc="glibc 2.36"),
        python=LockedPython("", "3.11.2", "/usr/bin/python3.11", "apt"),
        packages=packages,
    )


def test_an_exported_pylock_imports_equal(tmp_path: Path) -> None:
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
    assert files_outside(urls, tmp_path) == ["/links of/a-1.0-py3-none-any.whl"]
    text = export_pylock(lock(*packages), urls, project=tmp_path, directory=beside)
    places = {package["name"]: package for package in tomllib.loads(text)["packages"]}
    assert places["a"]["wheels"][0]["path"] == "/links of/a-1.0-py3-none-any.whl"
    assert places["c"]["archive"]["path"] == "../w #1/c-1.0-py3-none-any.whl"
    assert import_pylock(write(beside, text), DEBIAN, project=tmp_path) == packages


def test_files_of_the_project_go_out_without_a_path_of_this_machine(tmp_path: Path) -> None:
    package = LockedPackage("a", "1.0", "index", "a-1.0-py3-none-any.whl", A, 7)
    urls = {A: (tmp_path / "my wheels/a-1.0-py3-none-any.whl").as_uri()}
    (tmp_path / "locks").mkdir()
    for directory, path in ((tmp_path, "my wheels"), (tmp_path / "locks", "../my wheels")):
        text = export_pylock(lock(package), urls, project=tmp_path, directory=directory)
        (one,) = tomllib.loads(text)["packages"]
        assert one["wheels"][0]["path"] == f"{path}/a-1.0-py3-none-any.whl"
    assert files_outside(urls, tmp_path) == []


def test_an_exported_url_has_no_password(tmp_path: Path) -> None:
    package = LockedPackage("a", "1.0", "index", "a-1.0-py3-none-any.whl", A, 7)
    urls = {A: "https://me:s3cr3t@h/a-1.0-py3-none-any.whl"}
    text = export_pylock(lock(package), urls, project=tmp_path, directory=tmp_path)
    assert "s3cr3t" not in text
    assert "https://h/a-1.0-py3-none-any.whl" in text


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
    assert not any("version" in package for package in packages)


def test_editable_directories_are_kept_editable(tmp_path: Path) -> None:
    package = LockedPackage("l", "", "local", sha256=A, location="pkg", editable=True)
    (tmp_path / "pkg").mkdir()
    text = export_pylock(lock(package), {}, project=tmp_path, directory=tmp_path)
    (entry,) = tomllib.loads(text)["packages"]
    assert entry["directory"] == {"path": "pkg", "editable": True}
    (read,) = import_pylock(write(tmp_path, text), DEBIAN, project=tmp_path)
    assert replace(read, sha256=A) == package


@pytest.mark.parametrize("name", ["pylock.toml", "pylock.gpu.toml"])
def test_names_that_installers_recognize_are_accepted(name: str) -> None:
    check_pylock_name(name)


@pytest.mark.parametrize("name", ["lock.toml", "pylock.a.b.toml", "pylock..toml", "pylock", ""])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="invalid name"):
        check_pylock_name(name)


def declare_packages(tmp_path: Path, *names: str) -> DeclaredRequirements:
    return collect_requirements([PythonPackages(names=names)], tmp_path, DEBIAN)


def test_a_complete_set_has_no_conflicts(tmp_path: Path) -> None:
    packages = [
        LockedPackage("torch", "2.13.0+cpu", "index", "torch-2.13.0+cpu-py3-none-any.whl", A)
    ]
    expected = declare_packages(tmp_path, "torch==2.13.0", "never ; sys_platform == 'win32'")
    assert find_conflicts(packages, expected, DEBIAN) == []


def test_conflicts_name_missing_packages(tmp_path: Path) -> None:
    packages = [LockedPackage("a", "1.0", "index", "a-1.0-py3-none-any.whl", A)]
    expected = declare_packages(tmp_path, "A>=2", "c", "g @ git+https://h/g")
    assert find_conflicts(packages, expected, DEBIAN) == [
        "g @ git+https://h/g is built from source and cannot be part of it",
        "it has a 1.0, but A>=2 is required",
        "c is missing",
    ]


def test_a_file_outside_the_project_is_refused_when_it_is_read(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / C).write_bytes(b"")
    for place in (f"../{C}", str(tmp_path / C)):
        file = f'{{ path = "{place}", hashes = {{ sha256 = "{A}" }} }}'
        path = write(project, f'{HEAD}[[packages]]\nname = "c"\narchive = {file}\n')
        with pytest.raises(UsageError, match="outside the project"):
            import_pylock(path, DEBIAN, project=project)


@pytest.mark.parametrize("file", ["other-1.0-py3-none-any.whl", "a-2.0-py3-none-any.whl"])
def test_a_wheel_of_another_package_is_rejected(tmp_path: Path, file: str) -> None:
    path = tmp_path / "pylock.toml"
    path.write_text(
        'lock-version = "1.0"\n[[packages]]\nname = "a"\nversion = "1.0"\n'
        f'wheels = [{{ url = "https://h.test/{file}", hashes = {{ sha256 = "{"0" * 64}" }} }}]\n'
    )
    with pytest.raises(ResolveError, match=rf"pylock.toml: the wheel {file} is not a 1.0"):
        import_pylock(path, PlatformTarget("3.11.2", "glibc 2.36"))
