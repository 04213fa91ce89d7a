"""Build layers from wheels in a test's directory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread

from danlu.builder.embedded.context import OpContext, SolveRequest
from danlu.builder.embedded.ops.wheel import execute_all
from danlu.graph.ops import InstallScheme, Wheel, WheelSource
from danlu.sources.pypi.indexes import IndexSettings
from danlu.store import Layer, Store
from danlu.util.config import Configuration
from danlu.util.paths import Paths
from tests.fakes.wheels import sha256_of

__all__ = ["SCHEME", "SITE", "WheelBuilder"]

SCHEME = InstallScheme("/opt/venv", "3.11", "lib/python3.11/site-packages", "/opt/venv/bin/python")
SITE = "opt/venv/lib/python3.11/site-packages"


async def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await anyio.to_thread.run_sync(functools.partial(function, *args, **kwargs))


class WheelBuilder:
    def __init__(self, root: Path, store: Store) -> None:
        self.project = root / "project"
        self.links = self.project / "links"
        self.links.mkdir(parents=True)
        self.store = store
        self.lines: list[str] = []
        self.transfers: list[tuple[int, int]] = []
        self.config = Configuration()
        self.paths = Paths.of({"DANLU_HOME": str(root / "home")})
        self.indexes = IndexSettings(find_links=(self.links.as_uri(),), no_index=True)

    def context(self, *, offline: bool = False, **more: Any) -> OpContext:
        return OpContext(
            request=SolveRequest(self.project, offline=offline),
            store=self.store,
            paths=self.paths,
            config=self.config,
            sandbox=cast(Any, None),
            inputs=more.pop("inputs", ()),
            log=self.lines.append,
            transfer=self.report,
            run_sync=in_thread,
            indexes=self.indexes,
            **more,
        )

    def op(self, path: Path, kind: Any = "index", location: str = "") -> Wheel:
        name, version = path.name.split("-")[:2]
        source = WheelSource(kind, location)
        return Wheel(name, version, path.name, sha256_of(path), source, SCHEME)

    def report(self, current: int, total: int, unit: str = "") -> None:
        self.transfers.append((current, total))

    def build(self, *ops: Wheel, **more: Any) -> list[Layer]:
        result = anyio.run(execute_all, ops, self.context(**more), [self.report] * len(ops))
        return [layer for layers in result for layer in layers]
