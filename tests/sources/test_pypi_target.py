"""Which wheels are compatible with a Python on a system, and which is the best."""

from __future__ import annotations

import pytest

from danlu.errors import MachineError, ResolveError
from danlu.sources.pypi.platform_target import PlatformTarget, best_wheel, is_compatible

DEBIAN = PlatformTarget("3.11.2", "glibc 2.36")
ALPINE = PlatformTarget("3.12.1", "musl 1.2.5")


@pytest.mark.parametrize(
    ("target", "platform"),
    [
        (DEBIAN, "x86_64-manylinux_2_36"),
        (PlatformTarget("3.13.0", "glibc 2.41"), "x86_64-manylinux_2_40"),
        (PlatformTarget("3.9.1", "glibc 2.27", "arm64"), "aarch64-manylinux_2_17"),
        (ALPINE, "x86_64-unknown-linux-musl"),
    ],
)
def test_uv_gets_the_platform_option(target: PlatformTarget, platform: str) -> None:
    assert target.uv_platform == platform


@pytest.mark.parametrize(
    ("file", "good"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("a-1-cp38-abi3-manylinux2014_x86_64.whl", True),
        ("a-1-cp311-cp311-linux_x86_64.whl", True),
        ("a-1-cp311-cp311-manylinux_2_39_x86_64.whl", False),
        ("a-1-cp312-cp312-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp311-cp311-win_amd64.whl", False),
        ("a-1-cp311-cp311-manylinux_2_28_aarch64.whl", False),
        ("nonsense.whl", False),
    ],
)
def test_tags_decide(file: str, good: bool) -> None:
    assert is_compatible(file, DEBIAN) is good


def test_musl_takes_musl_only() -> None:
    assert is_compatible("a-1-cp312-cp312-musllinux_1_2_x86_64.whl", ALPINE)
    assert not is_compatible("a-1-cp312-cp312-manylinux_2_17_x86_64.whl", ALPINE)


def test_the_closest_wheel_is_the_best() -> None:
    files = [
        "a-1-py3-none-any.whl",
        "a-1-cp311-cp311-manylinux_2_17_x86_64.whl",
        "a-1-cp311-cp311-manylinux_2_28_x86_64.whl",
        "a-1-cp38-abi3-manylinux_2_34_x86_64.whl",
    ]
    assert best_wheel(files, DEBIAN) == files[2]
    assert best_wheel(files[:1], DEBIAN) == files[0]
    assert best_wheel(["a-1-cp27-none-win32.whl"], DEBIAN) is None


def test_a_higher_build_number_is_better() -> None:
    files = ["a-1-2-py3-none-any.whl", "a-1-10-py3-none-any.whl", "a-1-py3-none-any.whl"]
    assert best_wheel(files, DEBIAN) == files[1]


def test_unknown_platforms_are_rejected() -> None:
    with pytest.raises(MachineError, match="riscv64"):
        _ = PlatformTarget("3.11.2", "glibc 2.36", "riscv64").machine
    with pytest.raises(ResolveError, match="C library"):
        _ = PlatformTarget("3.11.2", "").uv_platform
