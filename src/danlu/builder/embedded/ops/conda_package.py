"""Unpack a conda package into a layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.ops.staged_tree import commit_tree
from danlu.errors import ChecksumError, OutsideError
from danlu.graph.ops import WHEEL_TIME, CondaPackage
from danlu.oci.tar import NormalizeOptions
from danlu.sources.conda.channels import read_channel_settings
from danlu.sources.conda.unpack import unpack_package
from danlu.sources.http import fetch
from danlu.store import Layer

if TYPE_CHECKING:
    from danlu.sources.http import FetchedFile


_NORMALISE = NormalizeOptions(mtime=WHEEL_TIME, uid=0, gid=0)


async def execute(op: CondaPackage, context: OpContext) -> list[Layer]:
    """Return one layer with the package's files, its prefix replaced."""
    fetched = await _fetch_archive(op, context)
    with context.store.staging() as workspace:
        tree = workspace / "tree"
        tree.mkdir(mode=0o755)
        await context.run_sync(unpack_package, fetched.path, op, workspace, tree)
        created_by = f"{op.name} {op.version} {op.build}"
        return await commit_tree(context, tree, _NORMALISE, created_by)


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
