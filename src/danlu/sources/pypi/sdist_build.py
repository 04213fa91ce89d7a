"""Prepare a build in the sandbox: its source, owned by the build user, and the indexes."""

from __future__ import annotations

import os
from pathlib import Path

from danlu.sandbox.pip_indexes import map_into_sandbox
from danlu.sandbox.types import Mount
from danlu.sources.pypi.indexes import IndexSettings, to_index_url, uv_environment

#: Untrusted build code runs as "nobody", both in the image and in the user namespace.
BUILDER_UID = 65534

#: Path of uv in the sandbox.
UV_INSIDE = "/run/danlu/uv"

#: Directory in the sandbox with the wheels that a package is built with.
BUILD_WHEELS = "/run/danlu/build-wheels"

_INDEX_MOUNTS = "/run/danlu/indexes"

#: uv's variables that contain URLs, and their separators.
_INDEX_VARIABLES = {
    "UV_DEFAULT_INDEX": " ",
    "UV_EXTRA_INDEX_URL": " ",
    "UV_FIND_LINKS": ",",
    "UV_INDEX": " ",
    "UV_INDEX_URL": " ",
}
_PASSED_VARIABLES = (
    "UV_EXCLUDE_NEWER",
    "UV_INDEX_STRATEGY",
    "UV_INSECURE_HOST",
    "UV_NO_INDEX",
    "UV_PRERELEASE",
    "UV_RESOLUTION",
)


def chown_to_builder(tree: Path) -> None:
    """Give ``tree`` to :data:`BUILDER_UID`, so that a build can write and git trusts it."""
    if os.geteuid() != 0:
        return
    os.chown(tree, BUILDER_UID, BUILDER_UID)
    for root, directories, files in os.walk(tree):
        for name in (*directories, *files):
            os.chown(os.path.join(root, name), BUILDER_UID, BUILDER_UID, follow_symlinks=False)


def sandbox_indexes(indexes: IndexSettings, project: Path) -> tuple[dict[str, str], list[Mount]]:
    """Return uv's variables for the same indexes inside the sandbox, and the mounts they need."""
    outside = uv_environment(indexes, project)
    variables = {name: outside[name] for name in _PASSED_VARIABLES if outside.get(name)}
    places: dict[str, Path] = {}
    for name, separator in _INDEX_VARIABLES.items():
        addresses = [address for address in outside.get(name, "").split(separator) if address]
        if addresses:
            variables[name] = separator.join(
                map_into_sandbox(to_index_url(address, project), places, below=_INDEX_MOUNTS)
                for address in addresses
            )
    mounts = [Mount(target, source, readonly=True) for target, source in sorted(places.items())]
    return variables, mounts
