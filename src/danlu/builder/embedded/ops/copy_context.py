"""Files of the project."""

from __future__ import annotations

from danlu.builder.embedded.context import Context
from danlu.builder.embedded.ops.leaf import commit_tree, copy_members
from danlu.errors import OutsideError
from danlu.graph import CopyContext
from danlu.oci.tar import Normalise
from danlu.sources.context import digest_of_members, members_of
from danlu.store import Layer

__all__ = ["execute"]


async def execute(op: CopyContext, context: Context) -> list[Layer]:
    """One layer with the members of ``op.source``, owned as the op says.

    Raises :class:`OutsideError` where they are no longer what they were when the build began.
    """
    with context.store.staging() as staged:
        members = await context.run_sync(members_of, context.project, op.source)
        await context.run_sync(copy_members, context.project, members, staged, op.target)
        if await context.run_sync(digest_of_members, context.project, members) != op.digest:
            raise OutsideError(
                f"{op.source} changed while it was being copied", hint="build once more"
            )
        normalise = Normalise(mtime=op.epoch, uid=op.uid, gid=op.gid)
        made_by = f"danlu: copy {op.source} to {op.target}"
        return await commit_tree(context, staged, normalise, made_by)
