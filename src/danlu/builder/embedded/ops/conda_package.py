"""Unpack a conda package into a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danlu.builder.embedded.context import OpContext
from danlu.errors import ChecksumError, OutsideError
from danlu.graph.ops import WHEEL_TIME, CondaPackage
from danlu.oci.tar import NormalizeOptions
from danlu.sources.conda.channels import read_channel_settings
from danlu.sources.conda.unpack import unpack_layer
from danlu.sources.http import fetch
from danlu.store import Layer

if TYPE_CHECKING:
    from pathlib import Path

    from danlu.oci.tar import LayerSummary
    from danlu.sources.http import FetchedFile

_NORMALISE = NormalizeOptions(mtime=WHEEL_TIME, uid=0, gid=0)


async def execute(op: CondaPackage, context: OpContext) -> list[Layer]:
    """Return one layer with the package's files, its prefix replaced."""
    fetched = await _fetch_archive(op, context)
    try:
        return [await _make_layer(op, fetched, context)]
    except ChecksumError:
        if context.request.offline:
            raise
    context.log(f"the cached download of {op.file} is damaged; fetching it again")
    fetched.path.unlink(missing_ok=True)
    return [await _make_layer(op, await _fetch_archive(op, context), context)]


async def _make_layer(op: CondaPackage, fetched: FetchedFile, context: OpContext) -> Layer:
    with context.store.staging() as workspace:
        tree = workspace / "tree"
        tree.mkdir(mode=0o755)
        summary = await _unpack_archive(op, fetched, tree, context)
        return await context.run_sync(
            context.store.commit_layer,
            tree,
            summary,
            created_by=f"{op.name} {op.version} {op.build}",
            normalise=_NORMALISE,
        )


async def _unpack_archive(
    op: CondaPackage, fetched: FetchedFile, tree: Path, context: OpContext
) -> LayerSummary:
    if context.workers is None:
        return await context.run_sync(unpack_layer, fetched.path, op, tree, _NORMALISE)
    return await context.workers.run(
        unpack_layer, fetched.path, op, tree, _NORMALISE, weight=fetched.size
    )


async def _fetch_archive(op: CondaPackage, context: OpContext) -> FetchedFile:
    """Return the archive from the first place of its channel that has the locked file."""
    settings = read_channel_settings(context.request.conda_channels, context.config)
    failures: list[OutsideError] = []
    for place in settings.locate(op.channel, context.request.project):
        url = f"{context.with_credentials(place).rstrip('/')}/{op.subdir}/{op.file}"
        try:
            return await fetch(
                url, op.sha256, cache=context.paths.cache / "http", offline=context.request.offline
            )
        except OutsideError as error:
            failures.append(error)
    # That a mirror has other bytes is worse than that another one does not answer.
    raise next((error for error in failures if isinstance(error, ChecksumError)), failures[-1])
