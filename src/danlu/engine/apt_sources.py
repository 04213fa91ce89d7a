"""Let apt work inside an environment whose image names no mirror.

Images that danlu builds contain no address of the machine that built them. An environment gets
this machine's mirrors (or those of ``[mirrors]`` in the configuration) while it runs, as a file
that is mounted and so never becomes part of an image.
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from danlu.errors import MachineError, UsageError
from danlu.sandbox.emulation import host_platform
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.types import Mount
from danlu.sources.apt.archive import debian_architecture, find_archive, find_release_by_codename
from danlu.sources.apt.host_config import read_host_apt
from danlu.sources.apt.sources_list import SourceEntry, format_deb822
from danlu.util.config import Configuration
from danlu.util.urls import strip_credentials

_SOURCES_LIST = "/etc/apt/sources.list"
_SOURCES_PARTS = "/etc/apt/sources.list.d"
_MOUNTED_FILE = f"{_SOURCES_PARTS}/danlu.sources"
_ID_FIELD = re.compile(r'^ID="?([a-z0-9._-]+)"?$', re.MULTILINE)
_CODENAME_FIELD = re.compile(r'^VERSION_CODENAME="?([a-z0-9._-]+)"?$', re.MULTILINE)


async def mount_apt_sources(
    view: LayerView, config: Configuration, work: Path
) -> tuple[Mount, ...]:
    """Return the mount of a sources file for apt; nothing if the image has sources or no apt.

    The file is written to ``work``. Passwords of mirrors are left out.
    """
    if view.entry(view.resolve("/usr/bin/apt-get")) is None or _has_sources(view):
        return ()
    release = (view.read("/etc/os-release") or b"").decode(errors="replace")
    family, codename = _ID_FIELD.search(release), _CODENAME_FIELD.search(release)
    if family is None or codename is None:
        return ()
    try:
        archive = find_archive(
            find_release_by_codename(family[1], codename[1]),
            debian_architecture(host_platform()),
            host=await read_host_apt(),
            config=config,
        )
    except (MachineError, UsageError):
        return ()  # nothing is known of such a distribution here; apt inside will say so
    entries = [_use_inside(entry, view) for entry in archive.entries]
    file = work / "apt.sources"
    file.write_text(format_deb822(entries))
    file.chmod(0o644)
    return (Mount(_MOUNTED_FILE, file, readonly=True),)


def _has_sources(view: LayerView) -> bool:
    """Return whether the image names sources itself."""
    lines = (view.read(_SOURCES_LIST) or b"").decode(errors="replace").splitlines()
    if any(line.strip() and not line.lstrip().startswith("#") for line in lines):
        return True
    return bool(view.names(view.resolve(_SOURCES_PARTS)))


def _use_inside(entry: SourceEntry, view: LayerView) -> SourceEntry:
    """Return ``entry`` without passwords, and without a keyring that the image does not have."""
    paths = [word for word in re.split(r"[\s,]+", entry.signed_by) if word.startswith("/")]
    missing = any(view.entry(view.resolve(path)) is None for path in paths)
    return replace(
        entry,
        uris=tuple(strip_credentials(uri) for uri in entry.uris),
        signed_by="" if missing else entry.signed_by,
    )
