"""Resolve against a directory of wheels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

from danlu.environment.lock import LockedPackage
from danlu.environment.types import PythonPackages
from danlu.errors import Span
from danlu.resolve.python.request import PythonRequest
from danlu.resolve.python.resolver import resolve_python
from danlu.sandbox.types import Mount
from danlu.sources.pypi.indexes import IndexSettings
from danlu.sources.pypi.platform_target import PlatformTarget
from danlu.sources.pypi.restrictions import read_restrictions
from danlu.util.paths import Paths

DEBIAN = PlatformTarget("3.11.2", "glibc 2.36")


class PythonResolver:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.links = root / "links"
        self.project = root / "project"
        self.links.mkdir()
        self.project.mkdir()

    def request(self, *names: str, line: int = 0, **more: object) -> PythonRequest:
        declared = PythonPackages(names=names, span=Span("build.envd", line), **more)  # type: ignore[arg-type]
        return PythonRequest(
            [declared],
            DEBIAN,
            self.project,
            Paths.of({"DANLU_HOME": str(self.root / "home")}),
            IndexSettings(find_links=(self.links.as_uri(),), no_index=True),
            read_restrictions(self.project),
        )

    def __call__(
        self, request: PythonRequest, old: Sequence[LockedPackage] = (), **more: object
    ) -> tuple[LockedPackage, ...]:
        async def run() -> tuple[LockedPackage, ...]:
            return await resolve_python(request, old, **more)  # type: ignore[arg-type]

        return anyio.run(run)

    def pins(self, packages: Sequence[LockedPackage]) -> list[str]:
        return [f"{package.name}=={package.version}" for package in packages]


class FakeResolveSandbox:
    """A fake sandbox that records its input and returns what uv would in there."""

    def __init__(self, resolved: str, pylock: str, code: int = 0) -> None:
        self.resolved, self.pylock, self.code = resolved, pylock, code
        self.requirements = ""
        self.files: dict[str, str] = {}
        self.environment: Mapping[str, str] = {}
        self.mounts: Sequence[Mount] = ()

    async def __call__(
        self, args: Sequence[str], mounts: Sequence[Mount], environment: Mapping[str, str]
    ) -> int:
        self.mounts, self.environment = mounts, environment
        work = next(mount.source for mount in mounts if mount.target == "/run/danlu/resolve")
        assert work is not None
        self.requirements = (work / "requirements.txt").read_text()
        self.files = {file.name: file.read_text() for file in work.iterdir() if file.is_file()}
        (work / "resolved.txt").write_text(self.resolved)
        (work / "pylock.toml").write_text(self.pylock)
        (work / "messages.txt").write_text("error: it broke\n")
        return self.code


PYLOCK_HEAD = 'lock-version = "1.0"\ncreated-by = "uv"\n'
