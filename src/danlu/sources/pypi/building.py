"""What building a package inside the sandbox is given: its source, copied, and who runs it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from danlu.sources.context import digest_of_members, members_of

__all__ = ["BUILDER", "UV_INSIDE", "copy_directory", "hand_over"]

#: Who runs a stranger's build code inside: nobody, in the image and in the namespace.
BUILDER = 65534

#: Where uv is seen inside.
UV_INSIDE = "/run/danlu/uv"


def copy_directory(source: Path, place: Path, project: Path) -> str:
    """Copy what counts of a source directory to ``place``; its digest (hexadecimal).

    The project's ignore file applies, outside of it the directory's own.
    """
    base = project if source.is_relative_to(project) else source
    members = members_of(base, str(source.relative_to(base)) or ".")
    place.mkdir(parents=True)
    for member in members:
        original, target = base / member.path, place / member.inside
        target.parent.mkdir(parents=True, exist_ok=True)
        if original.is_symlink():
            target.symlink_to(original.readlink())
        elif original.is_dir():
            target.mkdir(exist_ok=True)
        else:
            shutil.copy2(original, target)
    return digest_of_members(base, members).removeprefix("sha256:")


def hand_over(tree: Path) -> None:
    """Give ``tree`` to :data:`BUILDER`, so that a build can write there, and git trusts it."""
    if os.geteuid() != 0:
        return
    os.chown(tree, BUILDER, BUILDER)
    for root, directories, files in os.walk(tree):
        for name in (*directories, *files):
            os.chown(os.path.join(root, name), BUILDER, BUILDER, follow_symlinks=False)
