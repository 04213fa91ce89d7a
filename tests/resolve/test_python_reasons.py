"""Which requirements bring a locked Python package in."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from danlu.environment.lock import FunctionLock, LockedBase, LockedPackage, LockedPython
from danlu.environment.types import BaseSystem, Environment, PythonPackages
from danlu.errors import Span
from danlu.resolve.python.reasons import explain_package
from danlu.util.config import Configuration
from danlu.util.paths import Paths
from tests.fakes.wheels import make_wheel

HASH = "0123456789abcdef" * 4


@pytest.fixture
def links(tmp_path: Path, own_settings: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only index there is: a directory."""
    directory = tmp_path / "links"
    directory.mkdir()
    make_wheel(directory, "pip")  # danlu adds it to every environment
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(directory))
    return directory


def explain(links: Path, name: str, locked: dict[str, str], *names: str) -> tuple[str, ...]:
    lock = FunctionLock(
        platform="linux/amd64",
        base=LockedBase(inputs="", epoch=0, libc="glibc 2.36"),
        python=LockedPython("", "3.11.2", "/usr/bin/python3.11", "apt"),
        packages=tuple(
            LockedPackage(package, version, "index", f"{package}-{version}-x.whl", HASH)
            for package, version in locked.items()
        ),
    )
    declared = PythonPackages(names=names, span=Span("build.envd", 4))
    environment = Environment(
        "build", "build.envd", base=BaseSystem(os="debian12"), declarations=(declared,)
    )
    paths = Paths.of({"DANLU_HOME": str(links.parent / "home")})

    async def run() -> tuple[str, ...]:
        return await explain_package(
            environment, lock, name, project=links.parent, paths=paths, config=Configuration()
        )

    return anyio.run(run)


def test_every_requirement_that_leads_to_a_package_is_shown_with_its_line(links: Path) -> None:
    make_wheel(links, "low", "1.0")
    make_wheel(links, "middle", "1.0", requires=["low"])
    make_wheel(links, "high", "1.0", requires=["middle", "low<2"])
    locked = {"high": "1.0", "low": "1.0", "middle": "1.0"}
    lines = explain(links, "low", locked, "high", "low>=0.5")
    assert lines[0] == "low 1.0"
    assert "  build.envd:4: low>=0.5" in lines
    assert "  required by high 1.0" in lines
    assert "    build.envd:4: high" in lines
    assert "  required by middle 1.0" in lines
    assert "    required by high 1.0 (see above)" in lines


def test_what_the_locked_version_requires_counts_not_a_newer_one(links: Path) -> None:
    make_wheel(links, "low", "1.0")
    make_wheel(links, "high", "1.0", requires=["low"])
    make_wheel(links, "high", "2.0")
    lines = explain(links, "low", {"high": "1.0", "low": "1.0"}, "high")
    assert lines == ("low 1.0", "  required by high 1.0", "    build.envd:4: high")
