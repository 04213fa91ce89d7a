"""Prepare a build in the sandbox: its source, owned by the build user, and the indexes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from danlu.sandbox.machine_settings import WHEN_BUILDING, iter_settings
from danlu.sandbox.pip_indexes import map_into_sandbox, map_uv_paths, render_uv_toml
from danlu.sandbox.types import Mount
from danlu.sources.pypi.indexes import (
    IndexSettings,
    NamedIndex,
    select_uv_settings,
    to_index_url,
    uv_environment,
)

#: Untrusted build code runs as "nobody", both in the image and in the user namespace.
BUILDER_UID = 65534

#: Path of uv in the sandbox.
UV_INSIDE = "/run/danlu/uv"

#: Directory in the sandbox with the wheels that a package is built with.
BUILD_WHEELS = "/run/danlu/build-wheels"

_INDEX_MOUNTS = "/run/danlu/indexes"


def chown_to_builder(tree: Path) -> None:
    """Give ``tree`` to :data:`BUILDER_UID`, so that a build can write and git trusts it."""
    if os.geteuid() != 0:
        return
    os.chown(tree, BUILDER_UID, BUILDER_UID)
    for root, directories, files in os.walk(tree):
        for name in (*directories, *files):
            os.chown(os.path.join(root, name), BUILDER_UID, BUILDER_UID, follow_symlinks=False)


class SandboxIndexes(NamedTuple):
    """Indexes inside the sandbox: uv's variables, its ``uv.toml``, and what both refer to."""

    variables: dict[str, str]
    uv_toml: str
    named: tuple[NamedIndex, ...]
    mounts: list[Mount]


def sandbox_indexes(indexes: IndexSettings, project: Path) -> SandboxIndexes:
    """Return the same indexes with addresses that work inside the sandbox."""
    outside = uv_environment(indexes, project)
    settings = select_uv_settings(outside, project, WHEN_BUILDING)
    variables: dict[str, str] = {}
    selected: dict[str, object] = {}
    places: dict[str, Path] = {}

    def move(address: str) -> str:
        return map_into_sandbox(address, places, below=_INDEX_MOUNTS)

    for setting in iter_settings(sandbox="resolution"):
        selected |= {name: settings[name] for name in setting.uv if name in settings}
        for name in filter(outside.get, setting.variables):
            variables[name] = outside[name]
            if setting.separator:
                addresses = filter(None, outside[name].split(setting.separator))
                variables[name] = setting.separator.join(
                    move(to_index_url(address, project)) for address in addresses
                )
    text = render_uv_toml(map_uv_paths(selected, move))
    named = tuple(NamedIndex(index.name, move(index.url)) for index in indexes.named)
    mounts = [Mount(target, source, readonly=True) for target, source in sorted(places.items())]
    return SandboxIndexes(variables, text, named, mounts)
