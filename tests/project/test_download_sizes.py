"""How much a build downloads, said before it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from danlu.environment.lock import FunctionLock, LockedBase, LockedPackage
from danlu.graph.ops import AptInstall, DebPackage, InstallScheme, Op, Wheel, WheelSource
from danlu.project import download_sizes
from danlu.project.download_sizes import describe_downloads, find_downloads
from danlu.util.config import Configuration
from danlu.util.paths import Paths

SCHEME = InstallScheme("/opt/venv", "3.11", "lib/python3.11/site-packages", "/opt/venv/bin/python")


def lock(*packages: tuple[str, int]) -> FunctionLock:
    locked = tuple(
        LockedPackage(name, version or "1.0", "index", f"{name}.whl", f"{number:064x}", size)
        for number, (spec, size) in enumerate(packages)
        for name, _, version in [spec.partition("==")]
    )
    return FunctionLock("linux/amd64", LockedBase("", 0, "debian12"), packages=locked)


def wheel_ops(locked: FunctionLock) -> list[Op]:
    source = WheelSource("index")
    return [
        Wheel(package.name, package.version, package.file, package.sha256, source, SCHEME)
        for package in locked.packages
    ]


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.of({"DANLU_HOME": str(tmp_path)})


@pytest.fixture
def describe(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(download_sizes, "read_driver", lambda root: None)

    def run(locked: FunctionLock, *ops: Op) -> list[str]:
        downloads = find_downloads([*wheel_ops(locked), *ops], locked, paths)
        return list(describe_downloads(downloads, locked, Configuration()))

    return run


def test_the_total_and_the_five_largest_are_named(describe: Any) -> None:
    names = ["torch", "numpy", "scipy", "pandas", "pillow", "sympy", "pip"]
    locked = lock(*((name, 10**8 - number * 10**7) for number, name in enumerate(names)))
    assert describe(locked) == [
        "to download: 490 MB (torch 100 MB, numpy 90 MB, scipy 80 MB, pandas 70 MB, pillow 60 MB,"
        " and 2 more)"
    ]


def test_what_is_cached_does_not_count(describe: Any, paths: Paths) -> None:
    locked = lock(("torch", 800_000_000), ("numpy", 30_000_000))
    fetched = paths.cache / "uv" / "fetched" / locked.packages[0].sha256
    fetched.parent.mkdir(parents=True)
    fetched.touch()
    git, less = (
        DebPackage(name, "1", "amd64", name, size, "bookworm", f"pool/{name}.deb")
        for name, size in (("git", 40_000_000), ("less", 50_000_000))
    )
    kept = paths.cache / "apt" / "debs" / "git.deb"
    kept.parent.mkdir(parents=True)
    kept.touch()
    apt = AptInstall((git, less), ("git", "less"), epoch=0)
    assert describe(locked, apt) == ["to download: 80 MB (less 50 MB, numpy 30 MB)"]


def test_a_small_download_is_not_worth_a_line(describe: Any) -> None:
    assert describe(lock(("numpy", 15_000_000))) == []


def test_cuda_libraries_without_a_gpu_are_pointed_out_with_the_line_to_write(
    describe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = lock(("torch", 900_000_000), ("nvidia-cudnn-cu12", 600_000_000))
    assert describe(locked)[1] == (
        "hint: 600 MB of this are CUDA libraries, and this machine has no NVIDIA GPU; without"
        ' them: torch_backend="cpu"'
    )
    both = lock(("torch==2.13.0+cpu", 10**8), ("xgboost", 10**8), ("nvidia-nccl-cu12", 10**8))
    assert describe(both)[1].endswith('; without them: "xgboost-cpu"')
    monkeypatch.setattr(download_sizes, "read_driver", lambda root: object())
    assert len(describe(locked)) == 1
