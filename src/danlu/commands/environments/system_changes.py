"""Packages of the distribution that were installed or removed by hand in an environment."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from danlu.commands.environments.layer_reading import (
    has_linked_directory,
    read_lower,
    read_text,
)
from danlu.sandbox.layer_view import LayerView

_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_STATUS = "var/lib/dpkg/status"
_STATES = "var/lib/apt/extended_states"
_INFO = "var/lib/dpkg/info"
_HASH = re.compile(r"[0-9a-f]{32}")
#: Links to directories of /usr in a merged system.
_MERGED = ("bin/", "sbin/", "lib/", "lib32/", "lib64/", "libx32/")


@dataclass(frozen=True)
class SystemChanges:
    """Names of packages.

    Attributes:
        installed: Those that were installed on request.
        dependencies: How many others came with them.
        removed: Those that were removed.
        replaced: Those whose version is another than the image's: name, old and new version.
    """

    installed: tuple[str, ...] = ()
    dependencies: int = 0
    removed: tuple[str, ...] = ()
    replaced: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class _DpkgPackage:
    version: str
    conffiles: dict[str, str]


def find_system_changes(upper: Path, view: LayerView, owned: dict[str, str]) -> SystemChanges:
    """Return what differs, and add the files of these packages with their hashes to ``owned``."""
    if has_linked_directory(upper, _INFO) or has_linked_directory(upper, "var/lib/apt"):
        return SystemChanges()
    status = read_text(upper / _STATUS)
    if status is None:
        return SystemChanges()
    now, before = _parse_status(status), _parse_status(read_lower(view, _STATUS))
    added = now.keys() - before.keys()
    removed = before.keys() - now.keys()
    replaced = {
        name for name in now.keys() & before.keys() if now[name].version != before[name].version
    }
    owned.update(_list_files(view, replaced | removed, ""))
    owned.update(_list_files(view, added | replaced, str(upper)))
    for name in added | replaced:
        for path, hash in now[name].conffiles.items():
            owned[_merge_path(view, path)] = hash
    automatic = _parse_automatic(read_text(upper / _STATES) or "")
    requested = sorted(added - automatic)
    return SystemChanges(
        tuple(requested),
        len(added) - len(requested),
        tuple(sorted(removed)),
        tuple((name, before[name].version, now[name].version) for name in sorted(replaced)),
    )


def _parse_status(text: str) -> dict[str, _DpkgPackage]:
    """Return the installed packages in a dpkg status file by name."""
    packages = {}
    for stanza in text.split("\n\n"):
        fields: dict[str, str] = {}
        conffiles: dict[str, str] = {}
        for line in stanza.splitlines():
            if line.startswith(" /"):
                path, hash, *_ = (*line.split(), "")
                conffiles[path.lstrip("/")] = f"md5={hash}" if _HASH.fullmatch(hash) else ""
            elif line.startswith(("Package: ", "Status: ", "Version: ")):
                key, _, value = line.partition(": ")
                fields[key] = value
        name = fields.get("Package", "")
        if fields.get("Status", "").endswith(" installed") and _NAME.fullmatch(name):
            packages[name] = _DpkgPackage(fields.get("Version", ""), conffiles)
    return packages


def _parse_automatic(text: str) -> set[str]:
    """Return the packages that apt installed because others need them."""
    automatic = set()
    for stanza in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line)
        if fields.get("Auto-Installed") == "1":
            automatic.add(fields.get("Package", ""))
    return automatic


def _list_files(view: LayerView, packages: set[str], root: str) -> dict[str, str]:
    """Return the files of packages below ``root``, or of the image, with their hashes."""
    files: dict[str, str] = {}
    # In this order: the lists have all files, the other files the hashes of some.
    for suffix in ("list", "md5sums"):
        for name in _list_info(view, root):
            stem, _, kind = name.rpartition(".")
            if kind != suffix or stem.partition(":")[0] not in packages:
                continue
            path = f"{_INFO}/{name}"
            text = (read_text(Path(root, path)) or "") if root else read_lower(view, path)
            for line in text.splitlines():
                hash, _, path = line.rpartition("  ") if kind == "md5sums" else ("", "", line)
                path = _merge_path(view, os.path.normpath(path).lstrip("/"))
                files[path] = f"md5={hash}" if _HASH.fullmatch(hash) else files.get(path, "")
    return files


def _list_info(view: LayerView, root: str) -> list[str]:
    if not root:
        return sorted(view.names(tuple(_INFO.split("/"))))
    place = Path(root, _INFO)
    return sorted(os.listdir(place)) if place.is_dir() else []


def _merge_path(view: LayerView, path: str) -> str:
    """Return where a file really is in a system whose /bin is a link to /usr/bin."""
    if not path.startswith(_MERGED):
        return path
    place = view.entry((path.partition("/")[0],))
    return f"usr/{path}" if place and os.path.islink(place) else path
