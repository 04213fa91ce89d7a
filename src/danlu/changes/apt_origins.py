"""Which packages of an environment come from archives of apt that a rebuild has, too.

dpkg does not record where a package is from. apt's lists say what its archives had; without them,
its log says what it installed. Both are read before the layer is finalized, which removes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from danlu.engine.layer_reading import has_linked_directory, read_lower, read_text
from danlu.sandbox.layer_view import LayerView
from danlu.util.files import read_regular_file

_LISTS = "var/lib/apt/lists"
_LOGS = "var/log/apt"
_SOURCES = "etc/apt/sources.list"
#: Debian's list has 50 MB.
_MAX_LIST_BYTES = 512 << 20
_PACKAGE = re.compile(rb"^Package: (\S+)$.*?^Version: (\S+)$", re.MULTILINE | re.DOTALL)
_ORIGIN = re.compile(r"^Origin: (.*)$", re.MULTILINE)
#: What the archives that every rebuild has say about themselves.
_DISTRIBUTIONS = ("Debian", "Ubuntu")
_ADDRESS = re.compile(r"\b(?:https?|file|ftp)://?([^\s\]]+)")
_INSTALLED = re.compile(r"([a-z0-9][a-z0-9+.-]+):\w+ \(([^,)]+)(, automatic)?\)")

#: Packages with the versions that a rebuild can install.
AptPackages = Mapping[str, frozenset[str]]


def find_apt_packages(upper: Path, view: LayerView) -> AptPackages | None:
    """Return the packages of archives that a rebuild has; None if nothing says which these are.

    ``upper`` is a writable layer that was not finalized, on top of ``view``.
    """
    if has_linked_directory(upper, _LISTS) or has_linked_directory(upper, _LOGS):
        return None
    found: dict[str, set[str]] = {}
    has_lists = False
    known = _list_known_addresses(view)
    for path in _list_files(upper, _LISTS, "_Packages"):
        data = read_regular_file(path, _MAX_LIST_BYTES)
        if data is None:
            continue
        has_lists = True
        if _is_known(path, known):
            for name, version in _PACKAGE.findall(data):
                found.setdefault(name.decode(), set()).add(version.decode(errors="replace"))
    if not has_lists:
        if not (upper / _LOGS).is_dir() and view.entry(tuple(_LOGS.split("/"))) is None:
            return None
        for name, version in _read_log(read_text(upper / _LOGS / "history.log") or ""):
            found.setdefault(name, set()).add(version)
    return {name: frozenset(versions) for name, versions in found.items()}


def _list_files(upper: Path, directory: str, suffix: str) -> list[Path]:
    place = upper / directory
    return sorted(place.glob(f"*{suffix}")) if place.is_dir() else []


def _list_known_addresses(view: LayerView) -> set[str]:
    """Return the addresses of the image's own sources, as names of lists begin with them."""
    names = (f"{_SOURCES}.d/{name}" for name in view.names(tuple(f"{_SOURCES}.d".split("/"))))
    texts = (read_lower(view, name) for name in (_SOURCES, *sorted(names)))
    found = {match for text in texts for match in _ADDRESS.findall(text)}
    return {address.rpartition("@")[2].strip("/").replace("/", "_") for address in found}


def _is_known(path: Path, known: set[str]) -> bool:
    """Return whether a list is the distribution's, or that of an archive that the image names."""
    if any(path.name.startswith(f"{address}_") for address in known):
        return True
    # mirror.example_debian_dists_bookworm_main_binary-amd64_Packages
    place, separator, rest = path.name.partition("_dists_")
    release = f"{place}{separator}{rest.partition('_')[0]}"
    texts = (read_text(path.with_name(f"{release}_{name}")) for name in ("InRelease", "Release"))
    origins = (_ORIGIN.search(text) for text in texts if text)
    return any(origin is not None and origin[1] in _DISTRIBUTIONS for origin in origins)


def _read_log(text: str) -> Iterator[tuple[str, str]]:
    """Yield the packages that apt installed, but for those that it was given as files."""
    for transaction in text.split("\n\n"):
        has_files = re.search(r"^Commandline: .*\.deb\b", transaction, re.MULTILINE) is not None
        for line in transaction.splitlines():
            if line.startswith(("Install: ", "Upgrade: ", "Reinstall: ", "Downgrade: ")):
                for name, version, automatic in _INSTALLED.findall(line):
                    if automatic or not has_files:
                        yield name, version
