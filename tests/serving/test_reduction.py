"""The environment of a packed model has what was used, pinned as before."""

from __future__ import annotations

import pytest

from danlu.environment.lock import (
    FunctionLock,
    LockedBase,
    LockedPackage,
    LockedPython,
    LockedSystem,
)
from danlu.environment.types import BaseSystem, Environment, PythonInterpreter, SystemPackages
from danlu.errors import UsageError
from danlu.graph.ops import DebPackage
from danlu.serving.reduction import ReducedEnvironment, close_over_dependencies, reduce_environment
from danlu.serving.report import InstalledDistributions, RunReport

STATUS = """\
Package: python3.11
Depends: python3.11-minimal (= 3.11.2-6), media-types | mime-support

Package: python3.11-minimal
Pre-Depends: libc6 (>= 2.36)

Package: media-types
Description: types
 Depends: nothing

Package: g++
Depends: gcc

Package: gcc

Package: libgomp1
Depends: libatomic

Package: libatomic-real
Provides: libatomic (= 1)
"""


def deb(name: str) -> DebPackage:
    return DebPackage(name, "1", "amd64", "0" * 64, 1, "bookworm", f"pool/{name}.deb")


SYSTEM = (
    "python3.11",
    "python3.11-minimal",
    "media-types",
    "g++",
    "gcc",
    "libgomp1",
    "libatomic-real",
)
LOCK = FunctionLock(
    "linux/amd64",
    LockedBase("", 0),
    python=LockedPython("", "3.11.2", "/usr/bin/python3.11", "apt"),
    system=LockedSystem("", tuple(map(deb, SYSTEM)), ("g++", "python3.11")),
    packages=tuple(
        LockedPackage(name, "1", "index") for name in ("scikit_learn", "numpy", "jupyterlab")
    ),
)
ENVIRONMENT = Environment(
    "build",
    "build.envd",
    BaseSystem(os="debian12", dev=True),
    (PythonInterpreter(version="3.11"), SystemPackages(("g++",))),
)


def reduce(*, keep: tuple[str, ...] = (), drop: tuple[str, ...] = ()) -> ReducedEnvironment:
    report = RunReport(
        distributions=InstalledDistributions(used={"scikit-learn": 3, "numpy": 2}),
        system=("libgomp1", "libc6"),
    )
    return reduce_environment(
        ENVIRONMENT, LOCK, report, dpkg_status=STATUS, uses_steps=False, keep=keep, drop=drop
    )


def test_only_used_packages_stay_with_the_pins_of_the_lock() -> None:
    found = reduce()
    assert found.lock.packages == LOCK.packages[:2]
    assert found.dropped == ("jupyterlab",)
    assert found.lock.system is not None
    names = [item.name for item in found.lock.system.packages]
    assert names == [
        "python3.11",
        "python3.11-minimal",
        "media-types",
        "libgomp1",
        "libatomic-real",
    ]
    assert found.lock.system.requested == ("python3.11",)
    assert found.dropped_system == ("g++", "gcc")
    assert found.environment.base == BaseSystem(os="debian12")
    assert found.environment.declarations == (PythonInterpreter(version="3.11"),)


def test_keep_and_drop_win_over_the_trace() -> None:
    found = reduce(keep=("JupyterLab", "g++"), drop=("numpy",))
    assert [item.name for item in found.lock.packages] == ["scikit_learn", "jupyterlab"]
    assert found.dropped_system == ()


def test_an_unknown_package_to_keep_is_an_error() -> None:
    with pytest.raises(UsageError, match="--keep nunpy") as error:
        reduce(keep=("nunpy",))
    assert error.value.hint == "did you mean numpy?"


def test_dependencies_follow_alternatives_and_providers() -> None:
    assert close_over_dependencies({"libgomp1"}, STATUS) == {"libgomp1", "libatomic-real"}
    assert close_over_dependencies({"unknown"}, "") == {"unknown"}
