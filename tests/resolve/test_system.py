"""Resolve system packages on a base, and the distribution's Python, from small archives."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.environment.lock import LockedBase
from danlu.environment.types import AptSource
from danlu.errors import ResolveError
from danlu.graph.ops import DebPackage, Platform
from danlu.resolve.system import (
    PythonChoice,
    distribution_python,
    dpkg_status_path,
    resolve_base,
    resolve_system,
)
from danlu.util.config import Configuration
from danlu.util.paths import Paths
from tests.fakes.apt import AptArchive, ArchivePackage, minimal_packages

pytestmark = pytest.mark.skipif(
    not (shutil.which("apt-get") and shutil.which("dpkg-deb")), reason="needs apt and dpkg"
)

PYTHON = (
    ArchivePackage("python3", "3.11.2-1", fields={"Depends": "python3.11 (>= 3.11.2-1~)"}),
    ArchivePackage("python3.11", "3.11.2-6+deb12u6", "amd64", {"Depends": "libc6 (>= 2.34)"}),
    ArchivePackage("python3-distutils", "3.11.2-3", fields={"Depends": "python3"}),
)
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9

Package: old-git
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


class SystemScenario:
    def __init__(self, root: Path) -> None:
        self.archive = AptArchive(root / "archive")
        self.archive.add("bookworm", *minimal_packages(), *PYTHON)
        self.archive.add(
            "bookworm",
            ArchivePackage("git", "1:2.39", "amd64", {"Depends": "libc6 (>= 2.34), liberror"}),
            ArchivePackage("liberror"),
            ArchivePackage("newer", "1", "amd64", {"Depends": "libc6 (>= 2.37)"}),
        )
        self.common: dict[str, Any] = {
            "platform": Platform(),
            "apt": AptSource(self.archive.sources_line("bookworm")),
            "paths": Paths.of({"DANLU_HOME": str(root / "home")}),
            "config": Configuration(),
        }
        self.paths = Paths.of({"DANLU_HOME": str(root / "home")})

    def base(self) -> LockedBase:
        return anyio.run(functools.partial(resolve_base, "debian12", refresh=True, **self.common))

    def system(
        self, base: LockedBase, *names: str, status: str | None = None, refresh: bool = True
    ) -> dict[str, str]:
        result: tuple[DebPackage, ...] = anyio.run(
            functools.partial(
                resolve_system, base, names, status=status, refresh=refresh, **self.common
            )
        )
        return {deb.name: deb.version for deb in result}

    def python(self, version: str) -> PythonChoice:
        return anyio.run(
            functools.partial(
                distribution_python, self.base(), version, refresh=True, **self.common
            )
        )


@pytest.fixture
def world(tmp_path: Path) -> SystemScenario:
    return SystemScenario(tmp_path)


def test_packages_of_the_base_are_not_listed_again(world: SystemScenario) -> None:
    assert world.system(world.base(), "git") == {"git": "1:2.39", "liberror": "1.0"}


def test_packages_of_the_base_need_no_package_lists(world: SystemScenario) -> None:
    base = world.base()
    shutil.rmtree(world.paths.cache)
    shutil.rmtree(world.archive.root)
    assert world.system(base, "passwd", "apt") == {}


def test_a_newer_package_of_the_base_is_part_of_the_system_if_it_is_needed(
    world: SystemScenario,
) -> None:
    base = world.base()
    world.archive.add("bookworm", ArchivePackage("libc6", "2.37-1", "amd64"))
    assert world.system(base, "newer") == {"libc6": "2.37-1", "newer": "1"}


@pytest.mark.parametrize("gone", [False, True])
def test_the_status_of_a_base_locked_elsewhere_is_reconstructed(
    world: SystemScenario, gone: bool
) -> None:
    base = world.base()
    dpkg_status_path(world.paths, base.packages).unlink()
    if gone:
        world.archive.add("bookworm", ArchivePackage("libc6", "2.36-10", "amd64"))
        world.archive.remove("bookworm", ArchivePackage("libc6", "2.36-9", "amd64"))
        world.archive.remove("bookworm", ArchivePackage("passwd", "1:4.13", "amd64"))
    assert world.system(base, "git") == {"git": "1:2.39", "liberror": "1.0"}


def test_status_of_an_image_lists_the_installed_packages(world: SystemScenario) -> None:
    base = LockedBase(inputs="", epoch=1, distribution="debian12", codename="bookworm")
    assert world.system(base, "git", status=STATUS) == {"git": "1:2.39", "liberror": "1.0"}
    assert world.system(base, "libc6", status=STATUS) == {}
    assert "libc6" in world.system(base, "git", status="")


def test_a_pin_of_an_installed_package_is_honoured(world: SystemScenario) -> None:
    base = world.base()
    world.archive.add("bookworm", ArchivePackage("passwd", "1:4.14", "amd64"))
    assert world.system(base, "passwd=1:4.14") == {"passwd": "1:4.14"}


def test_the_distributions_python_is_complete(world: SystemScenario) -> None:
    expected = PythonChoice(("python3.11", "python3-distutils"), "3.11.2", "/usr/bin/python3.11")
    assert world.python("") == world.python("3") == expected
    assert world.python("3.11") == world.python("3.11.2") == expected


def test_a_python_without_distutils_is_a_single_package(world: SystemScenario) -> None:
    world.archive.add("bookworm", ArchivePackage("python3.13", "3.13.5-2", "amd64"))
    assert world.python("3.13").names == ("python3.13",)


def test_a_release_candidate_is_spelled_as_python_spells_it(world: SystemScenario) -> None:
    world.archive.add("bookworm", ArchivePackage("python3.14", "3.14.0~rc2-1", "amd64"))
    assert world.python("3.14").version == "3.14.0rc2"


def test_another_patch_release_is_rejected_with_the_available_one(world: SystemScenario) -> None:
    with pytest.raises(ResolveError, match=r"3\.11\.2, not 3\.11\.9"):
        world.python("3.11.9")


def test_another_python_is_refused_with_the_release_that_has_it(world: SystemScenario) -> None:
    with pytest.raises(ResolveError, match=r"no Python 3\.13, only 3\.11") as caught:
        world.python("3.13")
    assert "debian13" in caught.value.hint
    with pytest.raises(ResolveError) as caught:
        world.python("3.7")
    assert "image" in caught.value.hint


@pytest.mark.parametrize("version", ["2.7", "latest", "3.", "3.11;rm", "-o", "3.11.2.1", " 3.11"])
def test_an_invalid_python_version_is_rejected(world: SystemScenario, version: str) -> None:
    with pytest.raises(ResolveError, match="invalid Python version"):
        world.python(version)


def test_a_pin_wins_over_the_bare_name_and_two_pins_are_refused(world: SystemScenario) -> None:
    base = world.base()
    world.archive.add("bookworm", ArchivePackage("git", "1:2.45", "amd64"))
    assert world.system(base, "git", "git=1:2.39")["git"] == "1:2.39"
    with pytest.raises(ResolveError, match="pinned twice"):
        world.system(base, "git=1:2.45", "git=1:2.39")
