"""Packages of the distribution that were installed or removed by hand in an environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from danlu.changes.apt_origins import AptPackages
from danlu.engine.layer_reading import (
    has_linked_directory,
    read_lower,
    read_text,
)
from danlu.sandbox.layer_view import LayerView

_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_STATUS = "var/lib/dpkg/status"
_STATES = "var/lib/apt/extended_states"
_INFO = "var/lib/dpkg/info"
#: Written by dpkg-divert and dpkg-statoverride.
_RULES = ("var/lib/dpkg/diversions", "var/lib/dpkg/statoverride")
_FIELDS = ("Package: ", "Status: ", "Version: ", "Depends: ", "Pre-Depends: ")
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
        local: Those that no archive of a rebuild has: name and version.
        selections: Those that dpkg holds now, or not any more: name and ``hold`` or ``install``.
        has_own_rules: Whether dpkg-divert or dpkg-statoverride was called by hand.
    """

    installed: tuple[str, ...] = ()
    dependencies: int = 0
    removed: tuple[str, ...] = ()
    replaced: tuple[tuple[str, str, str], ...] = ()
    local: tuple[tuple[str, str], ...] = ()
    selections: tuple[tuple[str, str], ...] = ()
    has_own_rules: bool = False


@dataclass(frozen=True)
class _DpkgPackage:
    version: str
    selection: str
    depends: frozenset[str]
    conffiles: dict[str, str]


def find_system_changes(
    upper: Path, view: LayerView, owned: dict[str, str], available: AptPackages | None = None
) -> SystemChanges:
    """Return what differs, and add the files of these packages with their hashes to ``owned``.

    ``available`` are the packages of archives that a rebuild has, None if they are not known.
    """
    if has_linked_directory(upper, _INFO) or has_linked_directory(upper, "var/lib/apt"):
        return SystemChanges()
    status = read_text(upper / _STATUS)
    if status is None:
        return SystemChanges(has_own_rules=_has_own_rules(upper, view))
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
    local = {
        name
        for name in added
        if available is not None and now[name].version not in available.get(name, ())
    }
    # apt counts what a local package needs as its dependencies.
    needed = {name for package in local for name in now[package].depends}
    requested = sorted(name for name in added - local if name not in automatic or name in needed)
    held = {name for name in now if now[name].selection == "hold"}
    held_before = {name for name in before if before[name].selection == "hold"}
    selections = dict.fromkeys(held - held_before - local, "hold")
    selections |= dict.fromkeys((held_before - held) & now.keys(), "install")
    return SystemChanges(
        tuple(requested),
        len(added) - len(requested) - len(local),
        tuple(sorted(removed)),
        tuple((name, before[name].version, now[name].version) for name in sorted(replaced)),
        tuple((name, now[name].version) for name in sorted(local)),
        tuple(sorted(selections.items())),
        not (added or removed or replaced) and _has_own_rules(upper, view),
    )


def _has_own_rules(upper: Path, view: LayerView) -> bool:
    return any(
        (text := read_text(upper / path)) is not None and text != read_lower(view, path)
        for path in _RULES
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
            elif line.startswith(_FIELDS):
                key, _, value = line.partition(": ")
                fields[key] = value
        name = fields.get("Package", "")
        if fields.get("Status", "").endswith(" installed") and _NAME.fullmatch(name):
            packages[name] = _DpkgPackage(
                fields.get("Version", ""),
                fields["Status"].partition(" ")[0],
                frozenset(_list_alternatives(fields)),
                conffiles,
            )
    return packages


def _list_alternatives(fields: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of all packages that would satisfy a requirement of a package."""
    for field in ("Pre-Depends", "Depends"):
        for requirement in re.split(r"[,|]", fields.get(field, "")):
            if match := _NAME.match(requirement.strip()):
                yield match[0]


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
