"""Unpack a conda package into a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyio import to_process

from danlu.builder.embedded.context import OpContext
from danlu.errors import ChecksumError, OutsideError
from danlu.graph.ops import WHEEL_TIME, CondaPackage
from danlu.oci.tar import NormalizeOptions
from danlu.sources.conda.channels import read_channel_settings
from danlu.sources.conda.unpack import unpack_layer
from danlu.sources.http import fetch
from danlu.store import Layer

if TYPE_CHECKING:
    from danlu.sources.http import FetchedFile


#: Archives of at least this size are unpacked in processes of their own, one per core, because
#: rattler holds the interpreter's lock while it unpacks. Starting one costs as much as unpacking a
#: smaller archive.
_PROCESS_SIZE = 512 * 1024

_NORMALISE = NormalizeOptions(mtime=WHEEL_TIME, uid=0, gid=0)


async def execute(op: CondaPackage, context: OpContext) -> list[Layer]:
    """Return one layer with the package's files, its prefix replaced."""
    fetched = await _fetch_archive(op, context)
    with context.store.staging() as workspace:
        tree = workspace / "tree"
        tree.mkdir(mode=0o755)
        arguments: tuple[Any, ...] = (fetched.path, op, workspace, tree, _NORMALISE)
        if fetched.path.stat().st_size < _PROCESS_SIZE:
            summary = await context.run_sync(unpack_layer, *arguments)
        else:
            summary = await to_process.run_sync(unpack_layer, *arguments)
        layer = await context.run_sync(
            context.store.commit_layer,
            tree,
            summary,
            created_by=f"{op.name} {op.version} {op.build}",
            normalise=_NORMALISE,
        )
        return [layer]


async def _fetch_archive(op: CondaPackage, context: OpContext) -> FetchedFile:
    """Return the archive from the first place of its channel that has the locked file."""
    settings = read_channel_settings(context.conda_channels, context.config)
    failures: list[OutsideError] = []
    for place in settings.locate(op.channel, context.project):
        url = f"{context.with_credentials(place).rstrip('/')}/{op.subdir}/{op.file}"
        try:
            return await fetch(
                url, op.sha256, cache=context.paths.cache / "http", offline=context.offline
            )
        except OutsideError as error:
            failures.append(error)
    # That a mirror has other bytes is worse than that another one does not answer.
    raise next((error for error in failures if isinstance(error, ChecksumError)), failures[-1])
