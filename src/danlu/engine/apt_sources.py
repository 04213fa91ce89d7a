"""Make apt work inside an environment whose image names no mirror.

Images that danlu builds contain no mirror of the machine that built them, and no package lists.
While an environment runs, a sources file with this machine's mirrors (or those of ``[mirrors]`` in
the configuration) is mounted into it, and one with a hook that says how to get the lists; a mount
never becomes part of an image.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from danlu.errors import MachineError, UsageError
from danlu.sandbox.emulation import host_platform
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.types import Mount
from danlu.util.config import Configuration
from danlu.util.urls import strip_credentials

if TYPE_CHECKING:
    from danlu.sources.apt.sources_list import SourceEntry

_SOURCES_LIST = "/etc/apt/sources.list"
_SOURCES_PARTS = "/etc/apt/sources.list.d"
_MOUNTED_FILE = f"{_SOURCES_PARTS}/danlu.sources"
_CONFIG_PARTS = "/etc/apt/apt.conf.d"
# apt itself only says "Unable to locate package". It runs the hook with a socket as descriptor 3
# (json-hooks-protocol.md in its documentation): a greeting, which must be answered, an empty line,
# and what happens.
_HINT_SCRIPT = r"""read -r greeting <&3; read -r empty <&3;
printf '{"jsonrpc":"2.0","id":0,"result":{"version":"0.1"}}\n\n' >&3;
read -r message <&3;
set -- /var/lib/apt/lists/*_Packages*;
case $message in *hooks.install.fail*) [ -e $1 ] || echo 'hint: there are no package lists yet:
run `apt-get update`, and then this again. `danlu add --apt NAME`, outside of the environment,
adds a package to its build file' >&2;; esac;
true"""
# A value is one line without quotes, which printf(1) also knows as \042.
_HINT_CONFIG = 'AptCli::Hooks::Install {{ "{}"; }};\n'.format(
    _HINT_SCRIPT.replace("\n", " ").replace('"', r"\042")
)
_ID_FIELD = re.compile(r'^ID="?([a-z0-9._-]+)"?$', re.MULTILINE)
_CODENAME_FIELD = re.compile(r'^VERSION_CODENAME="?([a-z0-9._-]+)"?$', re.MULTILINE)


async def mount_apt_sources(
    view: LayerView, config: Configuration, work: Path
) -> tuple[Mount, ...]:
    """Write a sources file for apt to ``work``, without passwords, and return the mounts.

    Return no mount if the image has no apt, or has sources.
    """
    mounts = create_apt_sources(view, work)
    await write_apt_sources(mounts, view, config)
    return mounts


def list_apt_files() -> Iterator[Path]:
    """Yield the files from which this machine's apt takes its mirrors."""
    for name in ("apt.conf", "sources.list"):
        yield Path("/etc/apt", name)
        parts = Path("/etc/apt", f"{name}.d")
        yield parts
        with suppress(OSError):
            yield from sorted(parts.iterdir())


def create_apt_sources(view: LayerView, work: Path) -> tuple[Mount, ...]:
    """Create an empty file in ``work`` for :func:`write_apt_sources`; return its mount.

    The hook's is the second. Return no mount if the image has no apt, or has sources.
    """
    if view.entry(view.resolve("/usr/bin/apt-get")) is None or _has_sources(view):
        return ()
    if not all(_read_release(view)):
        return ()
    sources, hook = work / "apt.sources", work / "apt.conf"
    sources.touch()
    hook.write_text(_HINT_CONFIG)
    for file in (sources, hook):
        file.chmod(0o644)
    return (
        Mount(_MOUNTED_FILE, sources, readonly=True),
        Mount(f"{_CONFIG_PARTS}/90danlu", hook, readonly=True),
    )


async def write_apt_sources(
    mounts: tuple[Mount, ...], view: LayerView, config: Configuration
) -> None:
    """Write this machine's mirrors to the file of :func:`create_apt_sources`.

    It stays empty if danlu knows no mirror of the image's distribution.
    """
    # Not at the top, because the environment's container starts while these are loaded.
    from danlu.sources.apt.archive import (
        debian_architecture,
        find_archive,
        find_release_by_codename,
    )
    from danlu.sources.apt.host_config import read_host_apt
    from danlu.sources.apt.sources_list import format_deb822

    family, codename = _read_release(view)
    for mount in mounts[:1]:
        assert mount.source is not None
        with suppress(MachineError, UsageError):
            archive = find_archive(
                find_release_by_codename(family, codename),
                debian_architecture(host_platform()),
                host=await read_host_apt(),
                config=config,
            )
            entries = [_adapt_entry(entry, view) for entry in archive.entries]
            mount.source.write_text(format_deb822(entries))


def _read_release(view: LayerView) -> tuple[str, str]:
    """Return ``ID`` and ``VERSION_CODENAME`` of os-release(5); empty if missing."""
    release = (view.read("/etc/os-release") or b"").decode(errors="replace")
    found = _ID_FIELD.search(release), _CODENAME_FIELD.search(release)
    family, codename = (match[1] if match else "" for match in found)
    return family, codename


def _has_sources(view: LayerView) -> bool:
    """Return whether the image has any apt source."""
    lines = (view.read(_SOURCES_LIST) or b"").decode(errors="replace").splitlines()
    if any(line.strip() and not line.lstrip().startswith("#") for line in lines):
        return True
    return bool(view.names(view.resolve(_SOURCES_PARTS)))


def _adapt_entry(entry: SourceEntry, view: LayerView) -> SourceEntry:
    """Return ``entry`` without passwords, and without a keyring that the image does not have."""
    paths = [word for word in re.split(r"[\s,]+", entry.signed_by) if word.startswith("/")]
    missing = any(view.entry(view.resolve(path)) is None for path in paths)
    return replace(
        entry,
        uris=tuple(strip_credentials(uri) for uri in entry.uris),
        signed_by="" if missing else entry.signed_by,
    )
