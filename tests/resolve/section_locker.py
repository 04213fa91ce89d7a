"""Lock one section of an environment without a base: mirrors are real, the distribution is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio

from danlu.environment.lock import LockedBase
from danlu.environment.lock_section import LockSection, SystemVersion, WheelFile
from danlu.environment.types import BaseSystem, Declaration, Environment
from danlu.graph.ops import Platform
from danlu.resolve.sections import SectionSources
from danlu.util.config import Configuration, MirrorConfig
from danlu.util.paths import Paths


class DistributionSources(SectionSources):
    """Real mirrors, with a fake distribution and Python index."""

    debs: Mapping[str, str] = {}
    wheel: WheelFile | None = None

    async def find_system_versions(self, names: Sequence[str]) -> Mapping[str, SystemVersion]:
        return {name: SystemVersion(self.debs[name]) for name in names if name in self.debs}

    async def find_wheel(self, name: str, version: str) -> WheelFile | None:
        return self.wheel


class SectionLocker:
    """Locks a section with the mirrors of a configuration."""

    def __init__(
        self,
        place: Path,
        mirrors: Mapping[str, str],
        architecture: str = "amd64",
        *,
        offline: bool = False,
    ) -> None:
        self.project = place / "project"
        self.project.mkdir(exist_ok=True)
        self.debs = {"libssl3": "3.0.17-1~deb12u3", "r-base-core": "4.2.2.20221110-2"}
        self.wheel: WheelFile | None = None
        self.paths = Paths.of({"DANLU_HOME": str(place / "home")})
        configured = {name: MirrorConfig(urls=(url,)) for name, url in mirrors.items()}
        self.context = SimpleNamespace(
            project=self.project,
            paths=self.paths,
            config=Configuration(mirrors=configured),
            platform=Platform("linux", architecture),
            offline=offline,
            may_change=lambda name: False,
        )

    def environment(self, *declared: Declaration) -> Environment:
        return Environment("build", "build.envd", BaseSystem(os="debian12"), declared)

    def lock(
        self, section: LockSection[Any], *declared: Declaration, pins: tuple[Any, ...] = ()
    ) -> tuple[Any, ...]:
        """Resolve a section, and check that the result is neither stale nor invalid."""
        environment = self.environment(*declared)
        sources = DistributionSources(environment, LockedBase("", 0), cast(Any, self.context))
        sources.debs, sources.wheel = self.debs, self.wheel
        result = anyio.run(section.resolve, environment, pins, sources)
        assert not section.is_stale(environment, result)
        assert not [problem for pin in result if (problem := section.find_problem(pin))]
        return result

    def list_cached_files(self) -> list[str]:
        """The names of downloads that a later build would take from the cache."""
        cache = self.paths.cache
        files = sorted(path for path in cache.rglob("*") if path.is_file())
        return [path.name for path in files if path.suffix not in (".lock", ".etag")]
