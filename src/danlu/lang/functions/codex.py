"""``install.codex``: the Codex agent, from the npm registry.

Its npm package only starts a program for the platform, which is another package. That is unpacked,
so that the environment needs no Node.js. npm's package metadata has its hash (``integrity``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from danlu.environment.lock_section import SectionResolver
from danlu.environment.types import GraphContext
from danlu.errors import OutsideError, ResolveError
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

_PACKAGE = "@openai/codex"
_TAG = re.compile(r"(?:rust-v|v)?([0-9]+\.[0-9]+\.[0-9]+(?:-(?:alpha|beta)\.[0-9]+)?)")
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?")

_PLACE = "/usr/local/lib/codex"

# Releases differ in the name of the directory, and the program looks for ripgrep in PATH.
_SCRIPT = f"""\
#!/bin/sh
PATH="{_PLACE}/codex-path:{_PLACE}/path:$PATH"
export PATH
for program in {_PLACE}/bin/codex {_PLACE}/codex/codex; do
    [ -x "$program" ] && exec "$program" "$@"
done
echo "codex: no program below {_PLACE}" >&2
exit 127
"""


class CodexAgent(LanguageToolchain, frozen=True):
    """``install.codex(version)``: ``codex`` of a release, or of the newest when it is locked."""

    title: ClassVar[str] = "Codex"
    section: ClassVar[str] = "codex"

    def describe_content(self, pin: LockedToolchain, platform: Platform) -> ArchiveContent:
        triple = f"{find_machine(platform, self.title)}-unknown-linux-musl"
        include = (f"package/vendor/{triple}",)
        return ArchiveContent(_PLACE, strip_components=3, include=include)

    def vertices(self, context: GraphContext) -> Sequence[Vertex]:
        vertices = super().vertices(context)
        if context.lock is None:
            return vertices
        script = FileEntry("/usr/local/bin/codex", content=_SCRIPT, mode=0o755)
        files = Files((script,), context.epoch)
        return (*vertices, Vertex(files, name="Codex in PATH", branch="languages"))

    async def lock(self, base: str, resolver: SectionResolver) -> LockedToolchain:
        find_machine(resolver.platform, self.title)
        found = await self._read_metadata(self.version or "latest", resolver)
        version = str(found.get("version", ""))
        if not _VERSION.fullmatch(version):
            raise OutsideError(f"the npm registry has no valid version of {_PACKAGE}")
        machine = {"amd64": "x64"}.get(
            resolver.platform.architecture, resolver.platform.architecture
        )
        # Older releases have the programs of all platforms in one package.
        published = f"{version}-linux-{machine}"
        try:
            found = await self._read_metadata(published, resolver)
        except ResolveError:
            published = version
        path = f"{_PACKAGE}/-/codex-{published}.tgz"
        integrity = str(found["dist"].get("integrity", ""))
        if not integrity:
            raise OutsideError(
                f"the npm registry has no hash of {_PACKAGE} {published}",
                hint="use a registry that publishes `dist.integrity`: [mirrors.npm] in config.toml",
            )
        try:
            file = await resolver.fetch_from_mirror("npm", path, integrity=integrity)
        except FileNotFoundError:
            raise OutsideError(
                f"the npm registry has no file {path}",
                hint="use another version, or a registry that has it: [mirrors.npm] in config.toml",
            ) from None
        return LockedToolchain(
            version, "npm", self.version, base, path, sha256=file.sha256, size=file.size
        )

    async def _read_metadata(self, version: str, resolver: SectionResolver) -> dict[str, Any]:
        try:
            data = await resolver.read_from_mirror("npm", f"{_PACKAGE}/{version}")
            found = json.loads(data)
        except FileNotFoundError:
            raise ResolveError(
                f"{self.title} {version} not found on the npm registry",
                hint="use the name of a release, such as rust-v0.98.0 or 0.98.0",
            ) from None
        except ValueError as error:
            raise OutsideError(f"the npm registry's answer is invalid: {error}") from error
        if not isinstance(found, dict) or not isinstance(found.get("dist"), dict):
            raise OutsideError("the npm registry's answer is invalid: not a package")
        return found


CODEX = ToolchainPins(CodexAgent)


def _declare_codex(env: EnvironmentBuilder, call: BoundCall) -> None:
    match = _TAG.fullmatch(call["version"])
    if call["version"] and match is None:
        raise CallError(
            f"install.codex(): invalid version '{call['version']}'",
            hint='use a release such as "rust-v0.98.0" or "0.98.0"',
            argument="version",
        )
    env.declare_once("install.codex", CodexAgent(match[1] if match else "", span=call.span))


FUNCTIONS = (
    BuildFunction(
        "install.codex",
        "Install the Codex agent from the npm registry. It needs no Node.js.",
        (
            Parameter(
                "version",
                TEXT,
                "a release, such as `rust-v0.98.0` or `0.98.0`; empty for the newest one when it "
                "is locked",
                "",
            ),
        ),
        declare=_declare_codex,
        versions=("v1",),
        unique=True,
        lock_section=CODEX,
        example='install.codex("rust-v0.98.0")',
    ),
)
