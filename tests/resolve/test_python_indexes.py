"""Several package indexes: the wheel that pip would take is locked, on each platform."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from danlu.environment.types import PythonPackages
from danlu.errors import ResolveError
from danlu.resolve.python.request import PythonRequest
from danlu.resolve.python.requirements import collect_requirements
from danlu.sources.pypi.indexes import IndexSettings, read_index_settings
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.util.config import MirrorConfig
from tests.fakes.wheels import make_wheel, sha256_of
from tests.resolve.resolver import PYLOCK_HEAD, FakeResolveSandbox, PythonResolver

AMD64 = PlatformTarget("3.11.2", "glibc 2.36")
ARM64 = PlatformTarget("3.11.2", "glibc 2.36", "arm64")
TAGS = {
    AMD64: "cp311-cp311-manylinux_2_17_x86_64",
    ARM64: "cp311-cp311-manylinux_2_17_aarch64",
}


class LocalIndexes:
    """Two indexes with pages: ``extra``, searched first, and ``main``."""

    def __init__(self, root: Path) -> None:
        self.extra, self.main = root / "extra", root / "main"
        for index in (self.extra, self.main):
            index.mkdir()

    def add(self, index: Path, name: str, version: str, *targets: PlatformTarget) -> None:
        """Add wheels for ``targets`` (none: a pure one) that differ between the indexes."""
        page = index / name
        page.mkdir(exist_ok=True)
        for tag in [TAGS[target] for target in targets] or ["py3-none-any"]:
            make_wheel(page, name, version, {"origin.py": index.name}, tag=tag)
        links = [
            f'<a href="{wheel.name}#sha256={sha256_of(wheel)}">{wheel.name}</a>\n'
            for wheel in sorted(page.glob("*.whl"))
        ]
        (page / "index.html").write_text(
            f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>"
        )

    def request(
        self, resolver: PythonResolver, target: PlatformTarget, *names: str
    ) -> PythonRequest:
        settings = IndexSettings(default=self.main.as_uri(), extra=(self.extra.as_uri(),))
        declared = [PythonPackages(names=names)]
        return replace(resolver.request(), declared=declared, target=target, indexes=settings)

    def choose_with_pip(self, directory: Path, target: PlatformTarget, requirement: str) -> str:
        """Return the sha256 of the wheel that pip downloads."""
        platforms = [word for tag in target.platforms() for word in ("--platform", tag)]
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir"]
        command += ["--only-binary", ":all:", "--python-version", "3.11", *platforms]
        command += ["--index-url", self.main.as_uri(), "--extra-index-url", self.extra.as_uri()]
        subprocess.run([*command, "-d", str(directory), requirement], check=True)
        (wheel,) = directory.glob("*.whl")
        return sha256_of(wheel)


@pytest.fixture
def indexes(tmp_path: Path) -> LocalIndexes:
    return LocalIndexes(tmp_path)


@pytest.mark.parametrize("requirement", ["lib", "lib==1.1"])
def test_a_locked_version_is_found_behind_an_index_that_lacks_the_platform(
    resolver: PythonResolver, indexes: LocalIndexes, tmp_path: Path, requirement: str
) -> None:
    indexes.add(indexes.extra, "lib", "1.1", AMD64)
    indexes.add(indexes.main, "lib", "1.1", AMD64, ARM64)
    indexes.add(indexes.main, "lib", "1.0", AMD64, ARM64)
    indexes.add(indexes.main, "other", "1.0")
    names = (requirement, "other")
    locked = resolver(indexes.request(resolver, AMD64, *names))
    assert resolver.pins(locked) == ["lib==1.1", "other==1.0"]
    again = resolver(indexes.request(resolver, ARM64, *names), locked)
    assert resolver.pins(again) == ["lib==1.1", "other==1.0"]
    assert again[0].sha256 == indexes.choose_with_pip(tmp_path / "pip", ARM64, requirement)
    assert again == resolver(indexes.request(resolver, ARM64, *names)), "as without a lock"


def test_an_index_that_is_added_hides_no_locked_version(
    resolver: PythonResolver, indexes: LocalIndexes
) -> None:
    for version in ("1.0", "1.1"):
        indexes.add(indexes.main, "lib", version, AMD64)
        indexes.add(indexes.main, "dependent", version)
    indexes.add(indexes.main, "new", "1.0")
    locked = resolver(indexes.request(resolver, AMD64, "lib<1.2", "dependent"))
    indexes.add(indexes.main, "lib", "1.2", AMD64)
    indexes.add(indexes.main, "dependent", "1.2")
    indexes.add(indexes.extra, "lib", "1.1", ARM64)
    request = indexes.request(resolver, AMD64, "lib", "dependent", "new")
    again = resolver(request, locked)
    assert resolver.pins(again) == ["dependent==1.1", "lib==1.1", "new==1.0"]
    assert again[1] == locked[1]


def test_a_hidden_version_that_a_requirement_excludes_is_not_kept(
    resolver: PythonResolver, indexes: LocalIndexes
) -> None:
    indexes.add(indexes.extra, "lib", "1.1", AMD64)
    indexes.add(indexes.main, "lib", "1.1", ARM64)
    indexes.add(indexes.main, "lib", "1.0", AMD64, ARM64)
    locked = resolver(indexes.request(resolver, AMD64, "lib"))
    again = resolver(indexes.request(resolver, ARM64, "lib<1.1"), locked)
    assert resolver.pins(again) == ["lib==1.0"]


def test_a_wheel_of_one_index_wins_over_a_source_distribution_of_another(
    resolver: PythonResolver, indexes: LocalIndexes
) -> None:
    indexes.add(indexes.main, "lib", "1.0")
    indexes.add(indexes.main, "none", "0.9")
    names = ("lib", "none")
    entries = "".join(
        f'[[packages]]\nname = "{name}"\nversion = "1.0"\n'
        f'sdist = {{ url = "{indexes.extra.as_uri()}/{name}/{name}-1.0.tar.gz",'
        f' hashes = {{ sha256 = "{"a" * 64}" }} }}\n'
        for name in names
    )
    (resolver.project / "pkg").mkdir()
    (resolver.project / "pkg" / "setup.py").touch()
    inside = FakeResolveSandbox("", PYLOCK_HEAD + entries)
    request = indexes.request(resolver, AMD64, "./pkg", *names)
    locked = resolver(replace(request, run_in_sandbox=inside))
    assert [(package.name, package.source) for package in locked] == [
        ("lib", "index"),
        ("none", "sdist"),
    ]
    assert locked[0].sha256 == sha256_of(next((indexes.main / "lib").glob("*.whl")))


def test_only_pytorchs_packages_come_from_the_index_of_the_backend(
    resolver: PythonResolver, indexes: LocalIndexes, tmp_path: Path
) -> None:
    """With ``--index-url``, numpy would be PyTorch's old copy too."""
    mirror = tmp_path / "pytorch"
    for name, version in (("torch", "2.0+cpu"), ("torchvision", "1.0+cpu"), ("numpy", "1.0")):
        (mirror / "cpu").mkdir(parents=True, exist_ok=True)
        indexes.add(mirror / "cpu", name, version)
    for name, version in (("torch", "3.0"), ("torchvision", "3.0"), ("numpy", "3.0")):
        indexes.add(indexes.main, name, version)
    (resolver.project / "requirements.txt").write_text("torchvision\n")
    declared = [
        PythonPackages(("torch", "numpy"), torch_backend="cpu"),
        PythonPackages(requirements="requirements.txt"),
    ]
    mirrors = {"download.pytorch.org/whl": MirrorConfig((mirror.as_uri(),))}
    settings = read_index_settings(None, declared, resolver.project, mirrors=mirrors)
    settings = replace(settings, default=indexes.main.as_uri())
    request = replace(resolver.request(), declared=declared, target=AMD64, indexes=settings)
    locked = resolver(request)
    assert resolver.pins(locked) == ["numpy==3.0", "torch==2.0+cpu", "torchvision==1.0+cpu"]


def test_two_backends_of_pytorch_are_refused(resolver: PythonResolver) -> None:
    declared = [PythonPackages(("torch",), torch_backend=backend) for backend in ("cpu", "cu126")]
    with pytest.raises(ResolveError, match=r"torch must come from the index 'pytorch-cpu' and"):
        collect_requirements(declared, resolver.project, AMD64)
