"""What leaves share: a staged tree whose directories look as they would below any base."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from danlu.builder.embedded.context import Context
from danlu.oci.tar import Normalise, write_layer
from danlu.sources.context import Member
from danlu.store import Layer

__all__ = ["commit_tree", "copy_members", "inside", "make_parents"]

#: Directories whose mode or group is not 0755 root:root in a Debian system (base-files.deb). A leaf
#: that puts something below one must say the same, since its entry wins over the base's.
_KNOWN = {
    "root": (0o700, 0),
    "tmp": (0o1777, 0),
    "var/tmp": (0o1777, 0),
    "var/mail": (0o2775, 8),
    "var/local": (0o2775, 50),
}


def inside(root: Path, path: str) -> Path:
    """The place of the absolute image path ``path`` in the tree ``root``, ``..`` not followed."""
    relative = os.path.normpath("/" + path).lstrip("/")
    return root / relative


def make_parents(root: Path, path: Path) -> None:
    """Make the directories between ``root`` and ``path``, as a base has them."""
    missing = [one for one in path.parents if root in one.parents and not one.exists()]
    for directory in reversed(missing):
        mode, gid = _KNOWN.get(str(directory.relative_to(root)), (0o755, 0))
        directory.mkdir()
        os.chown(directory, 0, gid)
        os.chmod(directory, mode)


async def commit_tree(
    context: Context, staged: Path, normalise: Normalise, created_by: str
) -> list[Layer]:
    """Hash and commit a staged tree; no layer where it is empty."""
    if not any(staged.iterdir()):
        return []
    summary = await context.run_sync(write_layer, staged, None, normalise=normalise)
    layer = await context.run_sync(
        context.store.commit_layer, staged, summary, created_by=created_by, normalise=normalise
    )
    return [layer]


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
