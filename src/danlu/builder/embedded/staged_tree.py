"""Build a leaf's layer in a staged tree whose directories look the same over any base."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from danlu.builder.embedded.context import OpContext
from danlu.environment.image_layout import HOME
from danlu.graph.ops import FileEntry
from danlu.oci.tar import NormalizeOptions, write_layer
from danlu.sandbox.layer_view import LayerView
from danlu.sources.build_context import ContextEntry, copy_entries
from danlu.store import Layer
from danlu.util.safe_paths import ProjectTree

#: Directories that are not 0755 root:root in a Debian system (base-files.deb). A leaf with a file
#: in one of them needs the same mode and group, because its entry replaces the base's.
_BASE_DIRECTORIES = {
    "root": (0o700, 0),
    "tmp": (0o1777, 0),
    "var/tmp": (0o1777, 0),
    "var/mail": (0o2775, 8),
    "var/local": (0o2775, 50),
}


#: Directories of the root whose subdirectories may be the base's, and those that a base has empty.
_SYSTEM_DIRECTORIES = frozenset(
    ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "root", "run", "sbin")
) | {"sys", "tmp", "usr", "var"}
_EMPTY_DIRECTORIES = frozenset(("home", "media", "mnt", "opt", "srv"))


def path_inside(root: Path, path: str) -> Path:
    """Return the path in the tree ``root`` of an absolute image path; ``..`` cannot leave it."""
    relative = os.path.normpath("/" + path).lstrip("/")
    return root / relative


def make_parents(root: Path, path: Path, owner: tuple[int, int] = (0, 0)) -> None:
    """Create the directories between ``root`` and ``path`` as they are in a base.

    ``owner`` (uid, gid) gets those that no base has: the home directory and those below it, and
    directories such as ``/data`` and ``/opt/model``.
    """
    missing = [parent for parent in path.parents if root in parent.parents and not parent.exists()]
    for directory in reversed(missing):
        relative = directory.relative_to(root)
        mode, gid = _BASE_DIRECTORIES.get(str(relative), (0o755, 0))
        directory.mkdir()
        if not _may_be_of_base(relative):
            os.chown(directory, *owner)
        else:
            os.chown(directory, 0, gid)
        os.chmod(directory, mode)


def _may_be_of_base(directory: Path) -> bool:
    """Return whether a distribution may have the directory, relative to the root (FHS 3.0)."""
    if directory.is_relative_to(HOME[1:]):
        return False
    top, *below = directory.parts
    return top in _SYSTEM_DIRECTORIES or (top in _EMPTY_DIRECTORIES and not below)


def write_entry(staged: Path, entry: FileEntry) -> None:
    """Write a file, directory or link into a staged tree, with its parents."""
    path = path_inside(staged, entry.path)
    make_parents(staged, path, (entry.uid, entry.gid))
    if entry.kind == "dir":
        path.mkdir(exist_ok=True)
    elif entry.kind == "link":
        path.symlink_to(entry.target)
    else:
        path.write_text(entry.content)
    os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
    if entry.kind != "link":
        path.chmod(entry.mode)


def write_over(view: LayerView, staged: Path, target: str, text: str, mode: int) -> None:
    """Write a file with the owner and mode that it has below, else with ``mode``."""
    parts = view.resolve(target)
    copy_parents(view, staged, parts[:-1])
    path = staged.joinpath(*parts)
    path.write_bytes(text.encode(errors="surrogateescape"))
    model = view.entry(parts)
    if model is not None:
        status = os.lstat(model)
        os.chown(path, status.st_uid, status.st_gid)
        mode = stat.S_IMODE(status.st_mode)
    path.chmod(mode)


def copy_parents(view: LayerView, staged: Path, parts: tuple[str, ...]) -> None:
    """Create the directories at ``parts``, with the owner and mode that they have below."""
    for count in range(1, len(parts) + 1):
        path = staged.joinpath(*parts[:count])
        if path.exists():
            continue
        path.mkdir(mode=0o755)
        path.chmod(0o755)
        model = view.entry(parts[:count])
        if model is not None:
            status = os.lstat(model)
            os.chown(path, status.st_uid, status.st_gid)
            path.chmod(stat.S_IMODE(status.st_mode))


async def commit_tree(
    context: OpContext, staged: Path, normalise: NormalizeOptions, created_by: str
) -> list[Layer]:
    """Hash and commit a staged tree; return no layer if it is empty."""
    if not any(staged.iterdir()):
        return []
    summary = await context.run_sync(write_layer, staged, None, normalise=normalise)
    layer = await context.run_sync(
        context.store.commit_layer, staged, summary, created_by=created_by, normalise=normalise
    )
    return [layer]


def set_owner(path: Path, owner: tuple[int, int]) -> None:
    """Give ``path`` and what it contains to ``owner`` (uid, gid)."""
    os.chown(path, *owner, follow_symlinks=False)
    if path.is_dir() and not path.is_symlink():
        for directory, subdirectories, files in os.walk(path):
            for name in (*subdirectories, *files):
                os.chown(os.path.join(directory, name), *owner, follow_symlinks=False)


def copy_below(
    tree: ProjectTree,
    members: list[ContextEntry],
    staged: Path,
    target: str,
    owner: tuple[int, int] = (0, 0),
) -> str:
    """Copy ``members`` of the project into ``staged`` at ``target``; return their digest.

    ``owner`` (uid, gid) owns the copies. A single file goes to ``target`` itself unless that ends
    in ``/``; everything else goes below ``target``.
    """
    single = len(members) == 1 and members[0].is_named and not target.endswith("/")

    placed: list[Path] = []

    def place(member: ContextEntry) -> Path:
        path = path_inside(staged, target if single else f"{target}/{member.target}")
        make_parents(staged, path, owner)
        placed.append(path)
        return path

    digest = copy_entries(tree, members, place)
    if owner != (0, 0):
        for path in placed:
            os.chown(path, *owner, follow_symlinks=False)
    return digest
