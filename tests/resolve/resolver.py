"""Resolve against a directory of wheels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio

from danlu.environment.lock import LockedPackage
from danlu.environment.types import PythonPackages
from danlu.errors import Span
from danlu.resolve.python.request import PythonRequest
from danlu.resolve.python.resolver import resolve_python
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
