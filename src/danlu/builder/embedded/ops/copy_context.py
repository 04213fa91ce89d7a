"""Copy files of the project into a layer."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.staged_tree import commit_tree, copy_below
from danlu.errors import OutsideError
from danlu.graph.ops import CopyContext
from danlu.oci.tar import NormalizeOptions
from danlu.sources.build_context import ContextEntry, list_entries
from danlu.store import Layer
from danlu.util.safe_paths import ProjectTree
from danlu.util.sanitize import escape_unprintable

#: The number of files to name in a warning; more are counted.
_MAX_NAMES_SHOWN = 5


async def execute(op: CopyContext, context: OpContext) -> list[Layer]:
    """Return one layer with the members of ``op.source``, owned by its ``uid`` and ``gid``.

    Raises :class:`OutsideError` if they changed since the build began. The bytes are hashed while
    they are copied, so the layer always matches the op's digest.
    """
    with context.store.staging() as staged:
        members, digest = await context.run_sync(_copy_members, op, context, staged)
        if digest != op.digest:
            raise OutsideError(f"{op.source} changed while it was being copied", hint="build again")
        for line in _report_differences(members):
            context.warn(line)
        normalise = NormalizeOptions(mtime=op.epoch)
        made_by = f"danlu: copy {op.source} to {op.target}"
        return await commit_tree(context, staged, normalise, made_by)


def _copy_members(
    op: CopyContext, context: OpContext, staged: Path
) -> tuple[list[ContextEntry], str]:
    with ProjectTree(context.request.project) as tree:
        members = list_entries(tree, op.source)
        return members, copy_below(tree, members, staged, op.target, (op.uid, op.gid))


def _report_differences(members: list[ContextEntry]) -> Iterator[str]:
    """Return a warning for each way in which the copy differs from what was copied."""
    special = [member.path for member in members if member.is_special]
    if special:
        yield f"not copied, because an image cannot hold them: {_name_some(special)}"
    modes = [
        f"{member.path} ({stat.S_IMODE(member.status.st_mode):o})"
        for member in members
        if _loses_mode(member.status.st_mode)
    ]
    if modes:
        yield (
            "copied with mode 644 (755 if executable) instead of their own modes:"
            f" {_name_some(modes)}; set them with run()"
        )


def _loses_mode(mode: int) -> bool:
    """Return whether a mode has set-id bits or is closed to others, which the copy loses."""
    if stat.S_ISLNK(mode):
        return False
    special = mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX)
    if stat.S_ISDIR(mode):
        special &= ~stat.S_ISGID  # inherited by every directory below one that has it
    return bool(special) or not mode & 0o044


def _name_some(names: list[str]) -> str:
    more = len(names) - _MAX_NAMES_SHOWN
    return ", ".join(map(escape_unprintable, names[:_MAX_NAMES_SHOWN])) + (
        f" and {more} more" if more > 0 else ""
    )
