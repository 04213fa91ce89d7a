"""``config.rstudio_server``: RStudio Server, of Posit's Debian package.

The package is unpacked, not installed: its scripts start services. What they set up besides (the
server's user, its directories) is written here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from danlu.environment.image_layout import USER_NAME
from danlu.environment.lock_section import SectionResolver
from danlu.environment.types import GraphContext
from danlu.errors import ResolveError
from danlu.graph.ops import FileEntry, Files, Platform
from danlu.graph.types import Vertex
from danlu.lang.arg_types import TEXT, CallError
from danlu.lang.build_function import BoundCall, BuildFunction, EnvironmentBuilder, Parameter
from danlu.lang.toolchain import (
    ArchiveContent,
    LanguageToolchain,
    LockedToolchain,
    ToolchainPins,
    find_machine,
)

_MIRROR = "rstudio"
_VERSION = re.compile(r"([0-9]{4}\.[0-9]{2}\.[0-9]+)[+-]([0-9]+)")

#: The port that RStudio Server and envd use.
_PORT = 8787

#: What the package depends on, and R.
_PACKAGES = (
    *("libclang-dev", "libpq5", "libsqlite3-0", "libssl-dev", "lsb-release", "procps", "psmisc"),
    *("r-base-core", "sudo"),
)

#: Posit builds for releases of Ubuntu, and names them for others by their OpenSSL.
_BUILDS = {"libssl3": "jammy", "libssl3t64": "jammy", "libssl1.1": "focal"}

_PLACE = "/usr/lib/rstudio-server"
_DATA = "/var/lib/rstudio-server"


class RStudioServer(LanguageToolchain, frozen=True):
    """``config.rstudio_server(version)``; it listens to this machine only, and asks who it is."""

    title: ClassVar[str] = "RStudio Server"
    section: ClassVar[str] = "rstudio"
    default_version: ClassVar[str] = "2024.12.1-563"

    async def lock(self, base: str, resolver: SectionResolver) -> LockedToolchain:
        find_machine(resolver.platform, self.title)
        found = await resolver.find_system_versions([*_BUILDS, "r-base-core"])
        build = next((build for name, build in _BUILDS.items() if name in found), "")
        if not build or "r-base-core" not in found:
            raise ResolveError(
                f"RStudio Server cannot be installed on {base}: Posit's packages need OpenSSL 1.1 "
                "or 3 and R of Debian or Ubuntu",
                hint='use base(os="debian12") or base(os="ubuntu22.04")',
            )
        version = self.version or self.default_version
        architecture = resolver.platform.architecture
        path = f"{build}/{architecture}/rstudio-server-{version}-{architecture}.deb"
        try:
            file = await resolver.fetch_from_mirror(_MIRROR, path)
        except FileNotFoundError:
            raise ResolveError(
                f"RStudio Server {version} not found: the mirror '{_MIRROR}' has no {path}",
                hint="use another version, or a mirror that has it: [mirrors.rstudio] in "
                "config.toml",
            ) from None
        return LockedToolchain(
            version, _MIRROR, self.version, base, path, file.sha256, file.size, _PACKAGES
        )

    def describe_content(self, pin: LockedToolchain, platform: Platform) -> ArchiveContent:
        links = {"/usr/sbin/rserver": f"../lib/{_PLACE.rpartition('/')[2]}/bin/rserver"}
        return ArchiveContent(
            _PLACE, strip_components=3, include=(_PLACE.lstrip("/"),), links=links
        )

    def vertices(self, context: GraphContext) -> Sequence[Vertex]:
        vertices = super().vertices(context)
        if context.lock is None:
            return vertices
        owner = context.owner
        settings = {
            "www-address": "127.0.0.1",
            "www-port": _PORT,
            "server-user": USER_NAME if owner.uid else "root",
            "server-data-dir": f"{_DATA}/run",
            "secure-cookie-key-file": f"{_DATA}/secure-cookie-key",
        }
        config = "".join(f"{key}={value}\n" for key, value in settings.items())
        entries = (
            FileEntry(
                "/etc/rstudio/database.conf", content=f"provider=sqlite\ndirectory={_DATA}\n"
            ),
            FileEntry("/etc/rstudio/rserver.conf", content=config),
            FileEntry(_DATA, "dir", mode=0o755, uid=owner.uid, gid=owner.gid),
            FileEntry("/var/log/rstudio", "dir", mode=0o755, uid=owner.uid, gid=owner.gid),
        )
        files = Files(entries, context.epoch)
        name = "write /etc/rstudio/rserver.conf"
        return (*vertices, Vertex(files, (), name, "languages", (self.span,)))


def _declare_server(env: EnvironmentBuilder, call: BoundCall) -> None:
    match = _VERSION.fullmatch(call["version"])
    if call["version"] and match is None:
        raise CallError(
            f"config.rstudio_server(): invalid version '{call['version']}'",
            hint=f'use a release such as "{RStudioServer.default_version}"',
            argument="version",
        )
    version = f"{match[1]}-{match[2]}" if match else ""
    env.declare_once("config.rstudio_server", RStudioServer(version, span=call.span))


FUNCTIONS = (
    BuildFunction(
        "config.rstudio_server",
        "Install R and RStudio Server, configured for port 8787 of this machine only: "
        "`danlu run -- rserver --server-daemonize=0`.",
        (
            Parameter(
                "version",
                TEXT,
                f"a release such as `{RStudioServer.default_version}`, the default",
                "",
            ),
        ),
        declare=_declare_server,
        unique=True,
        lock_section=ToolchainPins(RStudioServer),
        example="config.rstudio_server()",
    ),
)
