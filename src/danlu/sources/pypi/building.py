"""What building a package inside the sandbox is given: its source, copied, and who runs it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from danlu.sandbox.indexes import inside
from danlu.sandbox.types import Mount
from danlu.sources.context import digest_of_members, members_of
from danlu.sources.pypi.indexes import Indexes, as_address, uv_environment

__all__ = ["BUILDER", "UV_INSIDE", "copy_directory", "hand_over", "indexes_inside"]

#: Who runs a stranger's build code inside: nobody, in the image and in the namespace.
BUILDER = 65534

#: Where uv is seen inside.
UV_INSIDE = "/run/danlu/uv"

_PLACES = "/run/danlu/indexes"

#: uv's variables that hold addresses, and what parts these.
_ADDRESSES = {
    "UV_DEFAULT_INDEX": " ",
    "UV_EXTRA_INDEX_URL": " ",
    "UV_FIND_LINKS": ",",
    "UV_INDEX": " ",
    "UV_INDEX_URL": " ",
}
_PASSED = (
    "UV_EXCLUDE_NEWER",
    "UV_INDEX_STRATEGY",
    "UV_INSECURE_HOST",
    "UV_NO_INDEX",
    "UV_PRERELEASE",
    "UV_RESOLUTION",
)


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


def indexes_inside(indexes: Indexes, project: Path) -> tuple[dict[str, str], list[Mount]]:
    """The variables that make uv inside search where it does outside, and the mounts they need."""
    outside = uv_environment(indexes, project)
    found = {name: outside[name] for name in _PASSED if outside.get(name)}
    places: dict[str, Path] = {}
    for name, separator in _ADDRESSES.items():
        addresses = [one for one in outside.get(name, "").split(separator) if one]
        if addresses:
            found[name] = separator.join(
                inside(as_address(one, project), places, below=_PLACES) for one in addresses
            )
    mounts = [Mount(target, source, readonly=True) for target, source in sorted(places.items())]
    return found, mounts
