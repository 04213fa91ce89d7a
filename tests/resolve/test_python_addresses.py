"""The URLs of locked files on the user's indexes, and errors for missing ones."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from danlu.environment.lock import FunctionLock, LockedBase, LockedPackage, LockedPython
from danlu.environment.types import BaseSystem, Environment, PythonPackages
from danlu.errors import OutsideError
from danlu.resolve.python.file_urls import find_file_urls
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.uv import Uv
from danlu.sources.pypi.uv_compile import Pin, locate_urls
from danlu.util.config import Configuration
from danlu.util.paths import Paths
from tests.fakes.wheels import make_wheel, sha256_of


@pytest.fixture(autouse=True)
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only index there is: a directory."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    directory = tmp_path / "links"
    directory.mkdir()
    monkeypatch.setenv("UV_FIND_LINKS", str(directory))
    return directory


def addresses(root: Path, *packages: LockedPackage) -> dict[str, str]:
    lock = FunctionLock(
        platform="linux/amd64",
        base=LockedBase(inputs="", epoch=0, libc="glibc 2.36"),
        python=LockedPython("", "3.11.2", "/usr/bin/python3.11", "apt"),
        packages=packages,
    )
    names = tuple(package.name for package in packages)
    environment = Environment(
        "build",
        "build.envd",
        base=BaseSystem(os="debian12"),
        declarations=(PythonPackages(names=names),),
    )
    paths = Paths.of({"DANLU_HOME": str(root / "home")})

    async def run() -> dict[str, str]:
        return await find_file_urls(
            environment, lock, project=root, paths=paths, config=Configuration()
        )

    return anyio.run(run)


def make_locked_package(path: Path) -> LockedPackage:
    name, version = path.name.split("-")[:2]
    return LockedPackage(name, version, "index", path.name, sha256_of(path))


def test_wheels_and_source_distributions_are_found(tmp_path: Path, links: Path) -> None:
    wheel = make_wheel(links, "app", requires=["never-locked"])
    sdist = links / "old-1.0.tar.gz"
    sdist.write_bytes(b"not looked into")
    source = LockedPackage("old", "1.0", "sdist", sdist.name, sha256_of(sdist))
    assert addresses(tmp_path, make_locked_package(wheel), source) == {
        sha256_of(wheel): wheel.as_uri(),
        sha256_of(sdist): sdist.as_uri(),
    }


def test_a_file_that_is_gone_is_named(tmp_path: Path, links: Path) -> None:
    here, gone = (
        make_locked_package(make_wheel(links, "app")),
        make_locked_package(make_wheel(tmp_path, "lib")),
    )
    with pytest.raises(OutsideError, match=r"lib-1\.0-py3-none-any\.whl any more") as caught:
        addresses(tmp_path, here, gone)
    assert "--upgrade lib" in caught.value.hint


def test_a_file_that_became_another_is_named(tmp_path: Path, links: Path) -> None:
    before = make_locked_package(make_wheel(tmp_path, "app"))
    make_wheel(links, "app", files={"app.py": "changed = True"})
    with pytest.raises(OutsideError, match=r"locked file app-1\.0-py3-none-any\.whl"):
        addresses(tmp_path, before)


class FixedAnswerUv(Uv, frozen=True):
    """A uv that always gives the same answer."""

    answer: str = ""

    async def compile_requirements(
        self, options: object, *, offline: bool = False
    ) -> tuple[int, str]:
        (self.cache / "pylock.toml").write_text(self.answer)
        return 0, ""


def test_addresses_have_no_credentials(tmp_path: Path) -> None:
    url = "https://me:secret@h/x-1.0-py3-none-any.whl#sha256=1"
    entry = f'{{ url = "{url}", hashes = {{ sha256 = "{"a" * 64}" }} }}'
    text = f'[[packages]]\nname = "x"\nversion = "1.0"\nwheels = [{entry}]\n'
    uv = FixedAnswerUv(tmp_path, tmp_path, answer=text)

    async def run() -> dict[str, str]:
        target = PlatformTarget("3.11.2", "glibc 2.36")
        return await locate_urls(uv, [Pin("x", "1.0")], target, scratch=tmp_path)

    assert anyio.run(run) == {"a" * 64: "https://h/x-1.0-py3-none-any.whl"}
