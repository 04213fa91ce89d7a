"""Files of the project."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from danlu.builder.embedded.context import Context
from danlu.builder.embedded.ops.leaf import commit_tree, inside, make_parents
from danlu.errors import OutsideError
from danlu.graph import CopyContext
from danlu.oci.tar import Normalise
from danlu.sources.context import Member, digest_of_members, members_of
from danlu.store import Layer

__all__ = ["copy_members", "execute"]


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


def copy_members(project: Path, members: list[Member], staged: Path, target: str) -> None:
    """Copy ``members`` of the project below ``staged``, as ``target`` says.

    A single file goes to ``target`` itself unless that ends in ``/``; everything else goes below
    ``target``.
    """
    single = len(members) == 1 and members[0].alone and not target.endswith("/")
    for member in members:
        path = inside(staged, target if single else f"{target}/{member.inside}")
        make_parents(staged, path)
        _copy_one(project / member.path, path)


def _copy_one(source: Path, path: Path) -> None:
    if source.is_symlink():
        path.symlink_to(os.readlink(source))
    elif source.is_dir():
        path.mkdir(exist_ok=True)
        path.chmod(0o755)
    else:
        shutil.copyfile(source, path)
        # Only the executable bit is content; the rest of a mode is the umask of who checked it out.
        path.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)
