"""A program that makes a Debian base and installs packages on it; prints JSON.

Tests run it in a separate process: entering a user namespace needs a single thread.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from danlu.builder.embedded.context import OpContext, SolveRequest, VertexResult
from danlu.builder.embedded.ops import apt_install, bootstrap
from danlu.errors import DanluError
from danlu.graph.ops import AptInstall, Bootstrap, Platform
from danlu.resolve.system import resolve_base, resolve_system
from danlu.sandbox import userns
from danlu.sandbox.sandbox import Sandbox
from danlu.sandbox.types import ProcessSpec, RootFilesystem
from danlu.store import Layer, Store
from danlu.util.config import Configuration
from danlu.util.paths import Paths


async def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await anyio.to_thread.run_sync(functools.partial(function, *args, **kwargs))


async def make(store_root: Path, names: list[str], script: str, offline: bool) -> dict[str, Any]:
    paths, config = Paths.of(), Configuration()
    base = await resolve_base(
        "debian12", Platform(), apt=None, paths=paths, config=config, offline=offline
    )
    debs = await resolve_system(
        base, names, platform=Platform(), paths=paths, config=config, offline=offline
    )
    lines: list[str] = []
    counts: dict[str, list[int]] = {}

    def count(current: int, total: int, unit: str = "") -> None:
        if unit:
            counts.setdefault(f"{total} {unit}", []).append(current)

    with Store.open(store_root) as store, store.lease(), store.staging() as work:
        context = functools.partial(
            OpContext,
            request=SolveRequest(Path("/"), offline=offline),
            store=store,
            paths=paths,
            config=config,
            sandbox=lambda: Sandbox(work),
            log=lines.append,
            transfer=count,
            run_sync=in_thread,
        )
        first = Bootstrap("debian12", base.codename, base.packages, base.epoch)
        below = tuple(await bootstrap.execute(first, context(inputs=())))
        second = AptInstall(debs, tuple(names), base.epoch, base.codename)
        above = tuple(
            await apt_install.execute(second, context(inputs=(VertexResult(below, below),)))
        )
        printed: list[str] = []
        code = await Sandbox(work).run(
            ProcessSpec(("/bin/sh", "-c", script), {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}),
            RootFilesystem(tuple(layer.tree for layer in (*below, *above))),
            network=False,
            on_line=printed.append,
        )
        return {
            "layers": [layer.diff_id for layer in (*below, *above)],
            "files": [_list_files(layer) for layer in (*below, *above)],
            "packages": {deb.name: deb.version for deb in (*base.packages, *debs)},
            "log": lines,
            "counts": counts,
            "code": code,
            "printed": printed,
        }


def _list_files(layer: Layer) -> list[str]:
    return sorted(str(path.relative_to(layer.tree)) for path in layer.tree.rglob("*"))


def main() -> None:
    store_root, names, script, offline = json.loads(sys.argv[1])
    userns.enter(Paths.of())
    try:
        result = anyio.run(make, Path(store_root), names, script, offline)
    except DanluError as error:
        result = {"error": type(error).__name__, "message": error.message, "details": error.details}
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
