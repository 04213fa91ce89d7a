"""Package records: the stanzas of Packages files and of dpkg's status."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from danlu.graph.ops import DebPackage

#: Fields of Packages that don't belong in dpkg's status, or that would only make it longer.
_DROPPED_FIELDS = (
    "status:",
    "filename:",
    "size:",
    "md5sum:",
    "sha1:",
    "sha256:",
    "sha512:",
    "description",
    "tag:",
    "task:",
    "homepage:",
)


class PackageRecord(msgspec.Struct, frozen=True):
    """A stanza: its text, and its fields by lower-case name."""

    text: str
    fields: dict[str, str]

    @property
    def key(self) -> tuple[str, str, str]:
        """Name, version, architecture."""
        get = self.fields.get
        return get("package", ""), get("version", ""), get("architecture", "")


class InstalledDeb(msgspec.Struct, frozen=True):
    """An installed package in dpkg's status."""

    name: str
    version: str
    architecture: str


def _parse_fields(text: str) -> dict[str, str]:
    fields = {}
    for line in text.split("\n"):
        if line[:1] not in (" ", "\t", ""):
            name, _, value = line.partition(":")
            fields[name.lower()] = value.strip()
    return fields


def parse_records(text: str) -> Iterator[PackageRecord]:
    """Yield the stanzas of ``text``; continuation lines are only in ``text``."""
    for stanza in re.split(r"\n[ \t]*\n", text):
        if stanza.strip():
            stanza = stanza.strip("\n")
            yield PackageRecord(stanza, _parse_fields(stanza))


def status_stanza(text: str, *, version: str = "") -> str:
    """Return the record of an installed package; ``version`` replaces its version if given."""
    kept: list[str] = []
    dropping = False
    for line in text.strip("\n").split("\n"):
        if line[:1] not in (" ", "\t"):
            lower = line.lower()
            dropping = lower.startswith(_DROPPED_FIELDS)
            if version and lower.startswith("version:"):
                line = f"Version: {version}"
        if not dropping:
            kept.append(line)
    return "\n".join([kept[0], "Status: install ok installed", *kept[1:]]) + "\n\n"


def minimal_stanza(deb: DebPackage) -> str:
    """Return the minimal stanza of an installed package, for when its record cannot be found."""
    return (
        f"Package: {deb.name}\nStatus: install ok installed\nPriority: optional\n"
        f"Section: misc\nMaintainer: unknown\nArchitecture: {deb.architecture}\n"
        f"Multi-Arch: same\nVersion: {deb.version}\n\n"
    )


def parse_status(status: str) -> dict[str, InstalledDeb]:
    """Return installed packages by name; those of foreign architectures also as ``name:arch``."""
    packages: dict[str, InstalledDeb] = {}
    for record in parse_records(status):
        words = record.fields.get("status", "").split()
        if len(words) == 3 and words[2] == "installed":
            entry = InstalledDeb(*record.key)
            packages.setdefault(entry.name, entry)
            packages[f"{entry.name}:{entry.architecture}"] = entry
    return packages


def provided_names(texts: Iterable[PackageRecord]) -> set[str]:
    """Return the names that the records provide in addition to their own."""
    names: set[str] = set()
    for record in texts:
        for part in record.fields.get("provides", "").split(","):
            name = part.split("(")[0].strip()
            if name:
                names.add(name)
    return names
