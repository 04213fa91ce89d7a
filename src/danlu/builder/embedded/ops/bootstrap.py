"""Bootstrap a minimal distribution from exactly the locked packages, as one layer.

All packages are unpacked from outside first, which puts dpkg in place; dpkg then installs all of
them properly from inside in one call, as debootstrap and mmdebstrap do for essential packages.
"""

from __future__ import annotations

from pathlib import Path

from danlu.builder.embedded.apt_repository import (
    REPOSITORY,
    fetch_packages,
    run_script,
    write_apt_repository,
)
from danlu.builder.embedded.base_tree import finish_tree, make_skeleton
from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.foreign_tree import unpack_packages
from danlu.builder.embedded.staged_tree import commit_tree
from danlu.graph.ops import Bootstrap
from danlu.oci.tar import NormalizeOptions
from danlu.sandbox.finalize_upper import finalize_upper
from danlu.sandbox.merge_upper import merge_upper
from danlu.sandbox.types import RootFilesystem
from danlu.store import Layer

# --force-depends: dpkg does not order by Pre-Depends, and everything is unpacked already.
# --force-unsafe-io: an interrupted bootstrap is discarded, so nothing needs fsync.
_INSTALL = f"""\
cd {REPOSITORY}
xargs dpkg --force-depends --force-unsafe-io --install < install
dpkg --configure --pending
"""


async def execute(op: Bootstrap, context: OpContext) -> list[Layer]:
    """Fetch missing packages, install all of them, and commit the layer."""
    cache = await fetch_packages(
        context, op.packages, distribution=op.distribution, codename=op.codename
    )
    with context.store.staging() as tree, context.store.staging() as work:
        directory = work / "repository"
        await write_apt_repository(cache, op.packages, directory)
        await context.run_sync(make_skeleton, tree, op)
        names = await unpack_packages(op.packages, context, directory, tree)
        (directory / "install").write_text("".join(f"{name}\n" for name in names))
        await _install_packages(op, context, tree, work)
        await context.run_sync(finish_tree, tree, op)
        made_by = f"danlu bootstrap {op.distribution}"
        return await commit_tree(context, tree, NormalizeOptions(clamp=op.epoch), made_by)


async def _install_packages(op: Bootstrap, context: OpContext, tree: Path, work: Path) -> None:
    upper = work / "upper"
    upper.mkdir()
    await run_script(
        context,
        _INSTALL,
        RootFilesystem((tree,), upper),
        directory=work / "repository",
        epoch=op.epoch,
        packages=len(op.packages),
        what=f"installing the base of {op.distribution}",
    )
    await context.run_sync(_merge_changes, upper, tree, op.epoch)


def _merge_changes(upper: Path, tree: Path, epoch: int) -> None:
    # dpkg unpacks every file again. Without those that it did not change, a directory's time says
    # when its content changed, however the changes were recorded.
    finalize_upper(upper, epoch, below=(tree,))
    merge_upper(upper, tree)
