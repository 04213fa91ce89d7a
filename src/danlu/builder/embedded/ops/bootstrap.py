"""Bootstrap a minimal distribution from exactly the locked packages, as one layer.

All packages are unpacked from outside first, which puts dpkg in place; dpkg then installs all of
them properly from inside in one call, as debootstrap and mmdebstrap do for essential packages.
"""

from __future__ import annotations

from danlu.builder.embedded.apt_repository import REPOSITORY, run_script
from danlu.builder.embedded.base_tree import commit_base, unpack_base
from danlu.builder.embedded.context import OpContext
from danlu.graph.ops import Bootstrap
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
    with context.store.staging() as tree, context.store.staging() as work:
        await unpack_base(op, context, tree, work / "repository")
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
        return await commit_base(op, context, tree, upper)
