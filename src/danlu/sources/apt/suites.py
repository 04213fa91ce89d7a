"""Debian-style distributions: their releases' names, suites and architectures. Pure tables."""

from __future__ import annotations

import msgspec

from danlu.errors import UsageError
from danlu.graph import Platform

__all__ = ["FAMILIES", "Distribution", "debian_architecture", "distribution", "of_codename"]

#: Version -> codename, oldest first. A release that is not here is found by its codename only.
FAMILIES: dict[str, dict[str, str]] = {
    "debian": {"11": "bullseye", "12": "bookworm", "13": "trixie", "14": "forky"},
    "ubuntu": {
        "20.04": "focal",
        "22.04": "jammy",
        "24.04": "noble",
        "24.10": "oracular",
        "25.04": "plucky",
        "25.10": "questing",
        "26.04": "resolute",
    },
}

#: What an installed system has beyond its release suite; backports are never used unasked.
_POCKETS = ("", "-updates", "-security")

#: OCI architecture (and variant) -> Debian architecture (dpkg's cputable and ostable).
_ARCHITECTURES = {
    "386": "i386",
    "amd64": "amd64",
    "arm": "armhf",
    "arm/v5": "armel",
    "arm/v6": "armel",
    "arm/v7": "armhf",
    "arm64": "arm64",
    "arm64/v8": "arm64",
    "loong64": "loong64",
    "mips64le": "mips64el",
    "ppc64le": "ppc64el",
    "riscv64": "riscv64",
    "s390x": "s390x",
}


class Distribution(msgspec.Struct, frozen=True):
    """One release: ``debian``, ``12``, ``bookworm``."""

    family: str
    version: str
    codename: str

    @property
    def name(self) -> str:
        """As build files spell it: ``debian12``."""
        return f"{self.family}{self.version}" if self.version else f"{self.family} {self.codename}"

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites an installed system of this release uses."""
        return tuple(self.codename + pocket for pocket in _POCKETS)

    def suite_of(self, pocket: str) -> str:
        """The suite of ``pocket`` (``""``, ``-updates``, ``-security``)."""
        return self.codename + pocket


def distribution(name: str) -> Distribution:
    """The release that ``name`` (``debian12``, ``ubuntu22.04``) means.

    Raises :class:`UsageError` that lists the known ones.
    """
    for family, releases in FAMILIES.items():
        version = name.removeprefix(family)
        if name.startswith(family) and version in releases:
            return Distribution(family, version, releases[version])
    known = ", ".join(f"{family}{one}" for family, all_ in FAMILIES.items() for one in all_)
    raise UsageError(f"unknown distribution {name!r}", hint=f"known are {known}")


def of_codename(family: str, codename: str) -> Distribution:
    """The release of ``family`` (or of a name that begins with it) called ``codename``."""
    for known, releases in FAMILIES.items():
        if family.startswith(known):
            versions = [version for version, name in releases.items() if name == codename]
            return Distribution(known, versions[0] if versions else "", codename)
    for known, releases in FAMILIES.items():
        for version, name in releases.items():
            if name == codename:
                return Distribution(known, version, codename)
    raise UsageError(
        f"{family or codename!r} has no apt packages that danlu knows",
        hint="system packages need an image of the Debian or Ubuntu family",
    )


def debian_architecture(platform: Platform) -> str:
    """Debian's name of a platform's architecture; :class:`UsageError` where it has none."""
    full = f"{platform.architecture}/{platform.variant}"
    found = _ARCHITECTURES.get(full) or _ARCHITECTURES.get(platform.architecture)
    if platform.os != "linux" or found is None:
        raise UsageError(f"no Debian-style distribution is made for {platform}")
    return found
