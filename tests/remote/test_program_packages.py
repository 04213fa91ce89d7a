"""Which packages danlu copies to another machine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from danlu.errors import MachineError
from danlu.remote.program_packages import (
    MachineProbe,
    install_packages,
    list_distributions,
    probe_this_machine,
    runs_installed_packages,
)
from danlu.sources.pypi.platform_target import PlatformTarget

OTHER = MachineProbe("linux", "3.12.4", "aarch64", "glibc", "2.31")


def test_installed_packages_are_copied_to_an_equal_machine() -> None:
    assert runs_installed_packages(probe_this_machine())


@pytest.mark.parametrize(
    "difference",
    [
        {"python": "3.99.1"},
        {"processor": "riscv64"},
        {"libc_family": "", "libc_version": ""},
        # Packages may have been built for the C library here.
        {"libc_version": "2.1"},
        {"system": "darwin"},
    ],
)
def test_another_machine_needs_packages_of_its_kind(difference: dict[str, str]) -> None:
    other = msgspec.structs.replace(probe_this_machine(), **difference)
    assert not runs_installed_packages(other)


def test_packages_are_selected_for_the_other_machine() -> None:
    assert OTHER.target == PlatformTarget("3.12.4", "glibc 2.31", "arm64")
    alpine = msgspec.structs.replace(OTHER, libc_family="", libc_version="")
    assert alpine.target.libc == "musl 1.2"


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ({"python": "3.9.18"}, r"3\.11 or later; python3 of that machine is 3\.9\.18"),
        ({"system": "freebsd14"}, "does not run on freebsd14"),
        ({"processor": "riscv64"}, "with riscv64"),
    ],
)
def test_a_machine_that_cannot_run_danlu_is_refused(
    difference: dict[str, str], message: str
) -> None:
    with pytest.raises(MachineError, match=message):
        _ = msgspec.structs.replace(OTHER, **difference).target


@pytest.mark.real
def test_the_same_versions_are_installed_for_another_python(tmp_path: Path) -> None:
    directory = tmp_path / "packages"
    install_packages(PlatformTarget("3.13.0", "glibc 2.36"), directory, tmp_path / "cache")
    assert list(directory.glob("msgspec/_core.cpython-313-x86_64-*.so"))
    assert (directory / "bin/uv").exists()
    ours = next(item for item in list_distributions() if item.metadata["Name"] == "msgspec")
    assert (directory / f"msgspec-{ours.version}.dist-info").is_dir()
