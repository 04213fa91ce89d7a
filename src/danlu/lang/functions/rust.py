"""``install.rust``: Rust of the distribution, or the standalone archive of rust-lang.org."""

from __future__ import annotations

from typing import ClassVar

from danlu.graph.ops import Platform
from danlu.lang.toolchain import (
    ArchiveContent,
    LanguageToolchain,
    LockedToolchain,
    VendorArchive,
    find_machine,
    make_install_function,
)

#: What the archive's own installer installs; each component has its own tree for the prefix.
_COMPONENTS = ("cargo", "clippy-preview", "rust-std-{triple}", "rustc", "rustfmt-preview")
_DIRECTORIES = ("bin", "etc", "lib", "libexec")


class RustToolchain(LanguageToolchain, frozen=True):
    """``install.rust(version)``: ``rustc`` and ``cargo``."""

    title: ClassVar[str] = "Rust"
    section: ClassVar[str] = "rust"
    debs: ClassVar[tuple[str, ...]] = ("rustc", "cargo")

    def find_archive(self, version: str, platform: Platform) -> VendorArchive | None:
        name = f"rust-{version}-{_name_triple(platform)}.tar.xz"
        return VendorArchive("rust", name, f"{name}.sha256")

    def describe_content(self, pin: LockedToolchain, platform: Platform) -> ArchiveContent:
        triple = _name_triple(platform)
        top = f"rust-{pin.version}-{triple}"
        include = tuple(
            f"{top}/{component.format(triple=triple)}/{directory}"
            for component in _COMPONENTS
            for directory in _DIRECTORIES
        )
        return ArchiveContent("/usr/local", strip_components=2, include=include)

    def system_packages(self) -> tuple[str, ...]:
        # rustc links with the C compiler.
        return ("gcc", "libc6-dev") if self.version else ()


def _name_triple(platform: Platform) -> str:
    return f"{find_machine(platform, 'Rust')}-unknown-linux-gnu"


FUNCTIONS = (
    make_install_function(
        RustToolchain,
        "Install Rust (`rustc` and `cargo`): of the distribution, or the archive of rust-lang.org.",
        versions="such as `1.72.0`; empty for the distribution's version",
        example="install.rust()",
    ),
)
