"""A program that compiles bytecode for the image that its argument names; prints JSON.

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
import anyio.to_thread

from danlu.builder.embedded import bytecode_compiler
from danlu.builder.embedded.context import OpContext, SolveRequest, VertexResult
from danlu.graph.ops import InstallScheme
from danlu.sandbox import userns
from danlu.sandbox.launcher import bytecode_layers
from danlu.sandbox.sandbox import Sandbox
from danlu.store import Layer, Store
from danlu.util.config import Configuration
from danlu.util.paths import Paths

SCHEME = InstallScheme("/opt/venv", "3.11", "lib/python3.11/site-packages", "/opt/venv/bin/python")
SITE = "opt/venv/lib/python3.11/site-packages"


async def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return await anyio.to_thread.run_sync(functools.partial(function, *args, **kwargs))


def summary(layers: list[Layer]) -> list[dict[str, Any]]:
    return [
        {
            "diff_id": layer.diff_id,
            "made": layer.created_by,
            "files": sorted(
                str(path.relative_to(layer.tree))
                for path in layer.tree.rglob("*")
                if path.is_file()
            ),
            "flags": sorted({path.read_bytes()[4] for path in layer.tree.rglob("*.pyc")}),
        }
        for layer in layers
    ]


async def main(paths: Paths, name: str) -> dict[str, Any]:
    with Store.open(paths.store) as store, store.lease(), store.staging() as work:
        image = store.image(name)
        assert image is not None
        stack = tuple(
            layer for diff_id in image.layers if (layer := store.layer(diff_id)) is not None
        )
        wheels = [layer for layer in stack if list((layer.tree / SITE).glob("*.dist-info"))]
        context = OpContext(
            request=SolveRequest(Path("/")),
            store=store,
            paths=paths,
            config=Configuration(),
            sandbox=lambda: Sandbox(work),
            inputs=(VertexResult(stack, stack),),
            log=lambda line: None,
            transfer=lambda current, total, unit="": None,
            run_sync=in_thread,
        )
        python = bytecode_layers.find_interpreter(store, stack, "/opt/venv/bin/python")
        before = bytecode_layers.find_bytecode_layers(store, wheels, python.key)
        one = await bytecode_compiler.compile_layers(wheels[:1], python, SCHEME, context)
        every = await bytecode_compiler.compile_layers(wheels, python, SCHEME, context)
        whole = bytecode_compiler.merge_bytecode(every.values(), stack, store)
        known = bytecode_layers.find_bytecode_layers(store, wheels, python.key)
        return {
            "key": python.key,
            "before": summary([*before.values()]),
            "one": summary([*one.values()]),
            "every": summary([*every.values()]),
            "known": summary([*known.values()]),
            "whole": summary([whole]),
        }


if __name__ == "__main__":
    home = Paths.of()
    userns.enter(home)
    print(json.dumps(anyio.run(main, home, sys.argv[1])))
