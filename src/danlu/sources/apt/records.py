"""Package records: the stanzas of Packages and of dpkg's status, and what is read from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from danlu.graph import Deb

__all__ = ["Record", "StatusEntry", "installed", "records", "status_stanza", "upstream_version"]

#: Fields of Packages that dpkg's status has not, or that would only make it longer.
_DROPPED = (
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


class Record(msgspec.Struct, frozen=True):
    """One stanza: its text, and the fields danlu needs, by lower-case name."""

    text: str
    fields: dict[str, str]

    @property
    def key(self) -> tuple[str, str, str]:
        """Name, version, architecture."""
        get = self.fields.get
        return get("package", ""), get("version", ""), get("architecture", "")


class StatusEntry(msgspec.Struct, frozen=True):
    """An installed package, as dpkg's status has it."""

    name: str
    version: str
    architecture: str


def _fields(text: str) -> dict[str, str]:
    found = {}
    for line in text.split("\n"):
        if line[:1] not in (" ", "\t", ""):
            name, _, value = line.partition(":")
            found[name.lower()] = value.strip()
    return found


def records(text: str) -> Iterator[Record]:
    """The stanzas of ``text``; folded values are kept in ``text`` only."""
    for stanza in re.split(r"\n[ \t]*\n", text):
        if stanza.strip():
            stanza = stanza.strip("\n")
            yield Record(stanza, _fields(stanza))


def status_stanza(text: str, *, version: str = "") -> str:
    """A record as a package that is installed; ``version`` replaces its own when given."""
    kept: list[str] = []
    dropping = False
    for line in text.strip("\n").split("\n"):
        if line[:1] not in (" ", "\t"):
            lower = line.lower()
            dropping = lower.startswith(_DROPPED)
            if version and lower.startswith("version:"):
                line = f"Version: {version}"
        if not dropping:
            kept.append(line)
    return "\n".join([kept[0], "Status: install ok installed", *kept[1:]]) + "\n\n"


def bare_stanza(deb: Deb) -> str:
    """The least that says a package is installed, where its record is nowhere to be had."""
    return (
        f"Package: {deb.name}\nStatus: install ok installed\nPriority: optional\n"
        f"Section: misc\nMaintainer: unknown\nArchitecture: {deb.architecture}\n"
        f"Multi-Arch: same\nVersion: {deb.version}\n\n"
    )


def installed(status: str) -> dict[str, StatusEntry]:
    """What a dpkg status says is installed, by name; foreign architectures as ``name:arch`` too."""
    found: dict[str, StatusEntry] = {}
    for record in records(status):
        words = record.fields.get("status", "").split()
        if len(words) == 3 and words[2] == "installed":
            entry = StatusEntry(*record.key)
            found.setdefault(entry.name, entry)
            found[f"{entry.name}:{entry.architecture}"] = entry
    return found


def provided(texts: Iterable[Record]) -> set[str]:
    """Names that the records provide beside their own."""
    names: set[str] = set()
    for record in texts:
        for part in record.fields.get("provides", "").split(","):
            name = part.split("(")[0].strip()
            if name:
                names.add(name)
    return names


def upstream_version(version: str) -> str:
    """``1:3.11.2-6+deb12u6`` -> ``3.11.2`` (Debian Policy 5.6.12: epoch and revision dropped)."""
    text = version.partition(":")[2] if ":" in version else version
    return text.rpartition("-")[0] if "-" in text else text
