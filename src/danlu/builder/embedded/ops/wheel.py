"""Wheels: each a layer of its own, unpacked by one call for all that are missing (D4)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import anyio
from msgspec.structs import replace

from danlu.builder.embedded.context import Context
from danlu.errors import OutsideError
from danlu.graph import WHEEL_TIME, Scheme, Wheel
from danlu.oci.tar import Normalise, write_layer
from danlu.sources.http import fetch
from danlu.sources.pypi import Indexes, Unpacked, Uv, materialise
from danlu.store import Layer

__all__ = ["execute", "execute_all"]

_NORMALISE = Normalise(mtime=WHEEL_TIME, uid=0, gid=0)

#: Layers hashed at once; hashing lets other Python code run, walking trees does not.
_THREADS = 2


async def execute(op: Wheel, context: Context) -> list[Layer]:
    """The layer of one wheel; a built one is its input's artifact ``wheel``."""
    return (await execute_all([op], context))[0]


async def execute_all(ops: Sequence[Wheel], context: Context) -> list[list[Layer]]:
    """The layer of each wheel, in the order of ``ops``.

    Raises :class:`OutsideError` naming a file that can no longer be had, :class:`ChecksumError`
    where one has changed, :class:`ResolveError` where two have one path with different bytes.
    """
    uv = Uv(
        context.paths.cache / "uv",
        context.project,
        context.indexes or Indexes(),
        offline=context.offline,
    )
    groups: dict[Scheme, list[int]] = {}
    for number, op in enumerate(ops):
        groups.setdefault(op.scheme, []).append(number)
    layers: dict[int, Layer] = {}
    for numbers in groups.values():
        with context.store.staging() as workspace:
            prepared = [await _prepare(ops[number], context) for number in numbers]
            files = {op.sha256: path for op, path in prepared if path is not None}
            unpacked = await materialise(
                uv,
                [op for op, _ in prepared],
                workspace=workspace,
                files=files,
                ahead=context.ahead,
            )
            made = await _commit_all(unpacked, context)
        layers.update(zip(numbers, made, strict=True))
    return [[layers[number]] for number in range(len(ops))]


async def _commit_all(unpacked: Sequence[Unpacked], context: Context) -> list[Layer]:
    layers: dict[int, Layer] = {}
    limit = anyio.Semaphore(_THREADS)

    async def one(number: int, item: Unpacked) -> None:
        async with limit:
            layers[number] = await context.run_sync(_commit, item, context)

    # The big ones first, so that none is left running alone at the end.
    order = sorted(range(len(unpacked)), key=lambda n: -len(unpacked[n].distribution.rows))
    async with anyio.create_task_group() as group:
        for number in order:
            group.start_soon(one, number, unpacked[number])
    return [layers[number] for number in range(len(unpacked))]


def _commit(item: Unpacked, context: Context) -> Layer:
    tree = item.finish()
    summary = write_layer(tree, None, normalise=_NORMALISE)
    made_by = f"{item.wheel.name} {item.wheel.version}"
    return context.store.commit_layer(tree, summary, created_by=made_by, normalise=_NORMALISE)


async def _prepare(op: Wheel, context: Context) -> tuple[Wheel, Path | None]:
    """The wheel with its hash known, and its file where it does not come from an index."""
    if op.source.kind == "index":
        return op, None
    if op.source.kind == "local":
        path = context.project / op.source.location
        if not path.is_file():
            raise OutsideError(f"the wheel {op.source.location} is gone from the project")
        return op, path
    if op.source.kind == "url":
        cache = context.paths.cache
        fetched = await fetch(
            op.source.location, op.sha256, cache=cache / "http", offline=context.offline
        )
        return op, _under_name(fetched.path, op.file, cache / "wheels" / fetched.sha256)
    path = context.inputs[0].artifacts["wheel"]
    version = op.version or path.name.split("-")[1]
    return replace(op, file=path.name, version=version, sha256=path.parent.name), path


def _under_name(path: Path, name: str, directory: Path) -> Path:
    """``path`` under the file name of a wheel, from which its tags are read."""
    target = directory / name
    if not target.exists():
        directory.mkdir(parents=True, exist_ok=True)
        partial = directory / f".{os.getpid()}-{name}"
        shutil.copyfile(path, partial)
        os.replace(partial, target)
    return target
