"""Releases of Debian-style distributions, and the archives that their packages come from.

The archive is taken from the user's configuration or derived from this machine's apt sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from danlu.errors import MachineError, UsageError
from danlu.graph.ops import Platform
from danlu.sources.apt.host_config import HostApt
from danlu.sources.apt.sources_list import SourceEntry, parse_sources
from danlu.sources.mirrors import replace_server
from danlu.util.config import Configuration, MirrorConfig

_COMPONENTS = {
    "debian": ("main", "contrib", "non-free", "non-free-firmware"),
    "ubuntu": ("main", "restricted", "universe", "multiverse"),
}

#: Suites named by age; which release that is, only the downloaded Release file says.
_ALIASES = ("stable", "oldstable", "oldoldstable", "testing", "unstable")

#: Where the keyring packages of distributions install their keys, by family.
_KEYRINGS = {
    "debian": ("/usr/share/keyrings/debian-archive-keyring.gpg",),
    "ubuntu": (
        "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
        "/etc/apt/trusted.gpg.d/ubuntu-keyring-2018-archive.gpg",
    ),
}


#: The architectures of Ubuntu's primary archive; others are ports.
_UBUNTU_PRIMARY = ("amd64", "i386")


class AptArchive(msgspec.Struct, frozen=True):
    """The suites that a release is installed from, and the architecture.

    ``entries`` are in order of preference. An entry can have several URIs (mirrors).
    """

    distribution: DistroRelease
    architecture: str
    entries: tuple[SourceEntry, ...]

    @property
    def mirror_count(self) -> int:
        """The number of mirror sets that can be tried."""
        return max(len(entry.uris) for entry in self.entries)


def _split_pocket(suite: str, bases: Iterable[str]) -> tuple[str, str] | None:
    """Split ``bookworm-security`` into (``bookworm``, ``-security``); None for other suites."""
    for base in bases:
        for pocket in ("", "-updates", "-security"):
            if suite == base + pocket:
                return base, pocket
    return None


def _looks_like(entry: SourceEntry, family: str) -> bool:
    """Guess by path or key whether an entry without lists belongs to the distribution."""
    directory = re.compile(rf"/{family}(-security|-ports)?/?$")
    return (
        any(directory.search(uri) for uri in entry.uris) or f"{family}-archive" in entry.signed_by
    )


def _belongs_to_family(entry: SourceEntry, family: str, host: HostApt) -> bool:
    stated = [
        host.origins[uri, entry.suite] for uri in entry.uris if (uri, entry.suite) in host.origins
    ]
    if stated:
        return any(origin.lower() == family for origin, _ in stated)
    return _looks_like(entry, family)


def _merge_entries(known: SourceEntry, other: SourceEntry) -> SourceEntry:
    """Merge two entries of one suite: more components of an archive, or another mirror of it."""
    if known.uris == other.uris:
        components = dict.fromkeys((*known.components, *other.components))
        return replace(known, components=tuple(components))
    if set(known.components) <= set(other.components):
        return replace(known, uris=tuple(dict.fromkeys((*known.uris, *other.uris))))
    return known


def has_sources_for(family: str, host: HostApt) -> bool:
    """Return whether this machine's own apt has sources of the distribution."""
    return any(_belongs_to_family(entry, family, host) for entry in host.entries)


def _entries_from_host(
    wanted: DistroRelease, architecture: str, host: HostApt
) -> list[SourceEntry]:
    """Return the machine's own entries of the family, converted to the wanted release."""
    entries: dict[str, SourceEntry] = {}
    exact: dict[str, bool] = {}  # an entry for the wanted release itself beats a converted one
    bases = (wanted.codename, *FAMILIES.get(wanted.family, {}).values(), *_ALIASES)
    for entry in host.entries:
        split = _split_pocket(entry.suite, bases)
        if split is None or (entry.architectures and architecture not in entry.architectures):
            continue
        if not _belongs_to_family(entry, wanted.family, host):
            continue
        base, pocket = split
        allowed = _COMPONENTS.get(wanted.family, ("main",))
        components = tuple(component for component in entry.components if component in allowed)
        suite = wanted.suite_of(pocket)
        if not components:
            continue
        turned = replace(entry, suite=suite, components=components, architectures=())
        if suite in entries and exact[suite] == (base == wanted.codename):
            entries[suite] = _merge_entries(entries[suite], turned)
        elif suite not in entries or base == wanted.codename:
            entries[suite], exact[suite] = turned, base == wanted.codename
    return list(entries.values())


def _entries_from_mirror(wanted: DistroRelease, mirror: MirrorConfig) -> list[SourceEntry]:
    """Return the entries of ``[mirrors.<family>]`` in the configuration."""
    entries = []
    for suite in wanted.suites:
        security = suite.endswith("-security")
        entries.append(
            SourceEntry(
                uris=mirror.security if security and mirror.security else mirror.urls,
                suite=suite,
                components=mirror.components,
                signed_by=str(Path(mirror.keyring).expanduser()) if mirror.keyring else "",
                # Some mirrors carry only the release itself, without updates.
                optional=suite != wanted.codename,
            )
        )
    return entries


def _default_keyring(family: str, mirror: MirrorConfig | None) -> str:
    if mirror is not None and mirror.keyring:
        return str(Path(mirror.keyring).expanduser())
    return next((keyring for keyring in _KEYRINGS.get(family, ()) if Path(keyring).exists()), "")


def _with_usable_key(entry: SourceEntry, family: str, mirror: MirrorConfig | None) -> SourceEntry:
    """Return ``entry`` with a keyring of this machine: the user's path may be the image's."""
    paths = [word for word in re.split(r"[\s,]+", entry.signed_by) if word.startswith("/")]
    if (not paths and (entry.signed_by or family == "debian")) or (
        paths and all(Path(path).exists() for path in paths)
    ):
        return entry
    return replace(entry, signed_by=_default_keyring(family, mirror))


def _use_mirrors(entry: SourceEntry, config: Configuration) -> SourceEntry:
    """Return an entry of ``config.apt_source`` on the mirrors that the user set for its servers."""
    return replace(entry, uris=tuple(replace_server(uri, config.mirrors) for uri in entry.uris))


def _keyring_package(family: str) -> str:
    name = {"debian": "debian-archive-keyring"}.get(family, f"{family}-keyring")
    return f"the package {name}"


def _no_archive_error(wanted: DistroRelease) -> MachineError:
    family = wanted.family
    return MachineError(
        f"no apt mirror configured for {wanted.family.capitalize()}"
        f' (needed for base(os="{wanted.name}"))',
        hint="add the lines above to danlu's config.toml (run `danlu config` to see its path)",
        details=(
            f"[mirrors.{family}]",
            f'urls = ["https://MIRROR/{family}"]',
            f'security = ["https://MIRROR/{family}-security"]'
            if family == "debian"
            else f'security = ["https://MIRROR/{family}"]',
            '# keyring = "FILE"  # only if the mirror has its own signing key',
        ),
    )


def _check_keyring(mirror: MirrorConfig, family: str) -> None:
    if mirror.keyring and not Path(mirror.keyring).expanduser().is_file():
        raise MachineError(
            f"[mirrors.{family}] keyring: file {mirror.keyring} not found",
            hint=f"install {_keyring_package(family)}",
        )


def _use_ubuntu_ports(entry: SourceEntry, architecture: str) -> SourceEntry:
    """Return ``entry`` with the archive that has an architecture of Ubuntu first.

    Ubuntu's mirrors have amd64 and i386 in ``ubuntu`` and the rest in ``ubuntu-ports``; a mirror
    of one's own may have all of them in one place.
    """
    is_port = architecture not in _UBUNTU_PRIMARY
    uris = [_find_ubuntu_archive(uri, is_port=is_port) for uri in entry.uris]
    return replace(entry, uris=tuple(dict.fromkeys((*uris, *entry.uris))))


def _find_ubuntu_archive(uri: str, *, is_port: bool) -> str:
    own, other = ("ubuntu-ports", "ubuntu") if is_port else ("ubuntu", "ubuntu-ports")
    moved = re.sub(rf"/{other}/?$", f"/{own}", uri)
    if is_port:
        return re.sub(
            r"//([a-z]+\.)?(archive|security)\.ubuntu\.com/", "//ports.ubuntu.com/", moved
        )
    return moved.replace("//ports.ubuntu.com/", "//archive.ubuntu.com/")


def find_archive(
    wanted: DistroRelease,
    architecture: str,
    *,
    host: HostApt,
    config: Configuration,
    source: str = "",
) -> AptArchive:
    """Return where packages of the release come from.

    ``source`` is the text of ``config.apt_source``. If it contains the release's own suite, it is
    used exclusively; otherwise it is added to the configuration or this machine's sources. Its
    servers are replaced by the mirrors that the user set for them. Raises :class:`MachineError`,
    with the lines to configure, if nothing is known about the family.
    """
    mirror = config.mirrors.get(wanted.family)
    if mirror is not None:
        _check_keyring(mirror, wanted.family)
    added = [
        _with_usable_key(_use_mirrors(entry, config), wanted.family, mirror)
        for entry in parse_sources(source)
    ]
    if any(
        _split_pocket(entry.suite, (wanted.codename,)) == (wanted.codename, "") for entry in added
    ):
        return AptArchive(wanted, architecture, tuple(added))
    if mirror is not None and mirror.urls:
        entries = _entries_from_mirror(wanted, mirror)
    else:
        entries = _entries_from_host(wanted, architecture, host)
    if not any(entry.suite == wanted.codename for entry in entries):
        raise _no_archive_error(wanted)
    if wanted.family == "ubuntu":
        entries = [_use_ubuntu_ports(entry, architecture) for entry in entries]
    return AptArchive(wanted, architecture, (*entries, *added))


#: Version -> codename, oldest first. Other releases can be found by codename only.
FAMILIES: dict[str, dict[str, str]] = {
    "debian": {"11": "bullseye", "12": "bookworm", "13": "trixie", "14": "forky"},
    "ubuntu": {
        "18.04": "bionic",
        "20.04": "focal",
        "22.04": "jammy",
        "24.04": "noble",
        "24.10": "oracular",
        "25.04": "plucky",
        "25.10": "questing",
        "26.04": "resolute",
    },
}

#: The suites of an installed system; backports are never used implicitly.
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


class DistroRelease(msgspec.Struct, frozen=True):
    """A release of a distribution: ``debian``, ``12``, ``bookworm``."""

    family: str
    version: str
    codename: str

    @property
    def name(self) -> str:
        """The name in build files: ``debian12``."""
        return f"{self.family}{self.version}" if self.version else f"{self.family} {self.codename}"

    @property
    def suites(self) -> tuple[str, ...]:
        """The suites that an installed system of this release uses."""
        return tuple(self.codename + pocket for pocket in _POCKETS)

    def suite_of(self, pocket: str) -> str:
        """Return the suite of ``pocket`` (``""``, ``-updates``, ``-security``)."""
        return self.codename + pocket


def find_release(name: str) -> DistroRelease:
    """Return the release called ``name`` (``debian12``, ``ubuntu22.04``).

    Raises :class:`UsageError` with the list of known releases.
    """
    for family, releases in FAMILIES.items():
        version = name.removeprefix(family)
        if name.startswith(family) and version in releases:
            return DistroRelease(family, version, releases[version])
    known = ", ".join(f"{family}{version}" for family, all_ in FAMILIES.items() for version in all_)
    raise UsageError(f"unknown distribution {name!r}", hint=f"known distributions: {known}")


def find_release_by_codename(family: str, codename: str) -> DistroRelease:
    """Return the release of ``family`` (or of a name that starts with it) with this codename."""
    for known, releases in FAMILIES.items():
        if family.startswith(known):
            versions = [version for version, name in releases.items() if name == codename]
            return DistroRelease(known, versions[0] if versions else "", codename)
    for known, releases in FAMILIES.items():
        for version, name in releases.items():
            if name == codename:
                return DistroRelease(known, version, codename)
    raise UsageError(
        f"system packages are not supported on {family or codename!r}",
        hint="use a Debian or Ubuntu image to install system packages",
    )


def debian_architecture(platform: Platform) -> str:
    """Return Debian's name of an architecture; raises :class:`UsageError` if none."""
    full = f"{platform.architecture}/{platform.variant}"
    name = _ARCHITECTURES.get(full) or _ARCHITECTURES.get(platform.architecture)
    if platform.os != "linux" or name is None:
        raise UsageError(f"no Debian-style distribution supports {platform}")
    return name
