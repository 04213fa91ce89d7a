"""Where a release's packages come from: the user's configuration, or this machine's sources."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from danlu.errors import MachineError
from danlu.sources.apt.entries import Entry, parse_text
from danlu.sources.apt.host import HostApt
from danlu.sources.apt.suites import FAMILIES, Distribution
from danlu.util.config import Configuration, Mirror

__all__ = ["Archive", "archive_for"]

_COMPONENTS = {
    "debian": ("main", "contrib", "non-free", "non-free-firmware"),
    "ubuntu": ("main", "restricted", "universe", "multiverse"),
}

#: Suites that mean a release by its age; which one, only the downloaded Release file says.
_ALIASES = ("stable", "oldstable", "oldoldstable", "testing", "unstable")

#: Where distributions' packages of public keys put them, by family.
_KEYRINGS = {
    "debian": ("/usr/share/keyrings/debian-archive-keyring.gpg",),
    "ubuntu": (
        "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
        "/etc/apt/trusted.gpg.d/ubuntu-keyring-2018-archive.gpg",
    ),
}


class Archive(msgspec.Struct, frozen=True):
    """The suites that a release is installed from, and the architecture wanted.

    ``entries`` are in order of preference; ``attempts`` is how many alternative URIs there are.
    """

    distribution: Distribution
    architecture: str
    entries: tuple[Entry, ...]

    @property
    def attempts(self) -> int:
        """How many sets of mirrors can be tried."""
        return max(len(entry.uris) for entry in self.entries)


def _pocket(suite: str, bases: Iterable[str]) -> tuple[str, str] | None:
    """``bookworm-security`` -> (``bookworm``, ``-security``); None for other suites."""
    for base in bases:
        for pocket in ("", "-updates", "-security"):
            if suite == base + pocket:
                return base, pocket
    return None


def _looks_like(entry: Entry, family: str) -> bool:
    """Whether an entry never downloaded is the distribution's own: by its path or its key."""
    directory = re.compile(rf"/{family}(-security|-ports)?/?$")
    return (
        any(directory.search(uri) for uri in entry.uris) or f"{family}-archive" in entry.signed_by
    )


def _belongs(entry: Entry, family: str, host: HostApt) -> bool:
    stated = [
        host.origins[uri, entry.suite] for uri in entry.uris if (uri, entry.suite) in host.origins
    ]
    if stated:
        return any(origin.lower() == family for origin, _ in stated)
    return _looks_like(entry, family)


def _joined(known: Entry, other: Entry) -> Entry:
    """Two entries of one suite: more components of one archive, or another mirror of it."""
    if known.uris == other.uris:
        components = dict.fromkeys((*known.components, *other.components))
        return replace(known, components=tuple(components))
    if set(known.components) <= set(other.components):
        return replace(known, uris=tuple(dict.fromkeys((*known.uris, *other.uris))))
    return known


def _from_host(wanted: Distribution, architecture: str, host: HostApt) -> list[Entry]:
    """The machine's own entries of the family, turned to the release that is wanted."""
    found: dict[str, Entry] = {}
    exact: dict[str, bool] = {}  # an entry of the wanted release itself wins over a derived one
    bases = (wanted.codename, *FAMILIES.get(wanted.family, {}).values(), *_ALIASES)
    for entry in host.entries:
        split = _pocket(entry.suite, bases)
        if split is None or (entry.architectures and architecture not in entry.architectures):
            continue
        if not _belongs(entry, wanted.family, host):
            continue
        base, pocket = split
        allowed = _COMPONENTS.get(wanted.family, ("main",))
        components = tuple(one for one in entry.components if one in allowed)
        suite = wanted.suite_of(pocket)
        if not components:
            continue
        turned = replace(entry, suite=suite, components=components, architectures=())
        if suite in found and exact[suite] == (base == wanted.codename):
            found[suite] = _joined(found[suite], turned)
        elif suite not in found or base == wanted.codename:
            found[suite], exact[suite] = turned, base == wanted.codename
    return list(found.values())


def _from_mirror(wanted: Distribution, mirror: Mirror) -> list[Entry]:
    """The entries of ``[mirrors.<family>]``."""
    entries = []
    for suite in wanted.suites:
        security = suite.endswith("-security")
        entries.append(
            Entry(
                uris=mirror.security if security and mirror.security else mirror.urls,
                suite=suite,
                components=mirror.components,
                signed_by=str(Path(mirror.keyring).expanduser()) if mirror.keyring else "",
                # A mirror of the release alone is a mirror too.
                optional=suite != wanted.codename,
            )
        )
    return entries


def _key(family: str, mirror: Mirror | None) -> str:
    if mirror is not None and mirror.keyring:
        return str(Path(mirror.keyring).expanduser())
    return next((one for one in _KEYRINGS.get(family, ()) if Path(one).exists()), "")


def _usable_key(entry: Entry, family: str, mirror: Mirror | None) -> Entry:
    """``entry`` with keys that this machine has: a path in the user's text may be the image's."""
    paths = [word for word in re.split(r"[\s,]+", entry.signed_by) if word.startswith("/")]
    if (not paths and (entry.signed_by or family == "debian")) or (
        paths and all(Path(one).exists() for one in paths)
    ):
        return entry
    return replace(entry, signed_by=_key(family, mirror))


def _keyring_package(family: str) -> str:
    name = {"debian": "debian-archive-keyring"}.get(family, f"{family}-keyring")
    return f"{family.capitalize()}'s package {name}"


def _unknown(wanted: Distribution) -> MachineError:
    family = wanted.family
    return MachineError(
        f"this machine's apt has no source of {wanted.family} packages to take {wanted.name} from",
        hint="say where they are in danlu's config.toml (its place: `danlu config`)",
        details=(
            f"[mirrors.{family}]",
            f'urls = ["https://MIRROR/{family}"]',
            f'security = ["https://MIRROR/{family}-security"]'
            if family == "debian"
            else f'security = ["https://MIRROR/{family}"]',
            f'keyring = "/usr/share/keyrings/{family}-archive-keyring.gpg"'
            f"  # from {_keyring_package(family)}",
        ),
    )


def _check_keyring(mirror: Mirror, family: str) -> None:
    if mirror.keyring and not Path(mirror.keyring).expanduser().is_file():
        raise MachineError(
            f"[mirrors.{family}] keyring: {mirror.keyring} is not a file on this machine",
            hint=f"it comes with {_keyring_package(family)}",
        )


def archive_for(
    wanted: Distribution,
    architecture: str,
    *,
    host: HostApt,
    config: Configuration,
    source: str = "",
) -> Archive:
    """Where packages of ``wanted`` come from.

    ``source`` is the text of ``config.apt_source``: where it has the release's own suite it
    stands alone, else it is added to what the configuration or this machine says. Raises
    :class:`MachineError` with the lines to write where nothing is known of the family.
    """
    mirror = config.mirrors.get(wanted.family)
    if mirror is not None:
        _check_keyring(mirror, wanted.family)
    added = [_usable_key(one, wanted.family, mirror) for one in parse_text(source)]
    if any(_pocket(one.suite, (wanted.codename,)) == (wanted.codename, "") for one in added):
        return Archive(wanted, architecture, tuple(added))
    if mirror is not None and mirror.urls:
        entries = _from_mirror(wanted, mirror)
    else:
        entries = _from_host(wanted, architecture, host)
    if not any(entry.suite == wanted.codename for entry in entries):
        raise _unknown(wanted)
    return Archive(wanted, architecture, (*entries, *added))
