"""The configuration of this machine's own apt: proxies, certificates, keys and archives."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from danlu.errors import MachineError
from danlu.sources.apt.sources_list import SourceEntry, iter_stanzas, parse_deb822, parse_one_line
from danlu.util.process import run

#: The machine's settings that apply to danlu's requests, too: proxies, certificates, timeouts …
#: Not its preferences: languages, extra index files, compression of lists.
_HONOURED_SETTINGS = re.compile(
    r"Acquire::(?!IndexTargets|Languages|GzipIndexes|CompressionTypes|Changelogs)"
)

_PACKAGES = {"dpkg-deb": "dpkg", "tar": "tar"}


def require_programs(*programs: str) -> None:
    """Raise :class:`MachineError` naming those ``programs`` that this machine lacks."""
    missing = [name for name in programs if shutil.which(name) is None]
    if not missing:
        return
    packages = sorted({_PACKAGES.get(name, "apt") for name in missing})
    raise MachineError(
        f"{' and '.join(missing)} not found on this machine",
        hint=f"base(os=…) and system packages require apt: install {' '.join(packages)} "
        "with your distribution's package manager",
    )


class HostApt(msgspec.Struct, frozen=True):
    """The configuration of this machine's apt, from ``apt-config dump`` and its source files.

    ``settings`` are the lines of apt.conf(5) that danlu's own calls use; ``entries`` are its binary
    sources; ``origins`` maps (URI, suite) to Origin and Codename of the Release file, for
    downloaded entries.
    """

    settings: tuple[str, ...] = ()
    entries: tuple[SourceEntry, ...] = ()
    origins: Mapping[tuple[str, str], tuple[str, str]] = {}
    trusted: str = "/etc/apt/trusted.gpg"
    trusted_parts: str = "/etc/apt/trusted.gpg.d"
    netrc: str = "/etc/apt/auth.conf"
    netrc_parts: str = "/etc/apt/auth.conf.d"


def _parse_dump(text: str) -> dict[str, str]:
    settings: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if not name.endswith("::"):
            settings[name] = value.strip().removesuffix(";").strip('"')
    return settings


def _directory_setting(config: Mapping[str, str], name: str, default: str) -> str:
    """Return a ``Dir::`` setting as an absolute path: each level is relative to its parent."""
    value = config.get(name) or default
    if value.startswith("/"):
        return value
    above = name.rpartition("::")[0]
    if above == "Dir":
        return str(Path(config.get("Dir", "/") or "/", value))
    return str(
        Path(
            _directory_setting(config, above, {"Dir::Etc": "etc/apt"}.get(above, "var/lib/apt")),
            value,
        )
    )


def _source_files(config: Mapping[str, str]) -> list[Path]:
    single = Path(_directory_setting(config, "Dir::Etc::sourcelist", "sources.list"))
    parts = Path(_directory_setting(config, "Dir::Etc::sourceparts", "sources.list.d"))
    files = [single]
    if parts.is_dir():
        files += sorted(file for file in parts.iterdir() if file.suffix in (".list", ".sources"))
    return files


def _read_entries(files: list[Path]) -> tuple[SourceEntry, ...]:
    entries: list[SourceEntry] = []
    for file in files:
        try:
            text = file.read_text(errors="replace")
        except OSError:  # absent, or not readable: apt run by this user could not read it, either
            continue
        entries += parse_deb822(text) if file.suffix == ".sources" else parse_one_line(text)
    return tuple(entries)


def list_file_prefix(uri: str, suite: str) -> str:
    """Return the start of the names of apt's list files for a suite (apt's URItoFileName)."""
    address = re.sub(r"^[a-z0-9+.-]+:(//)?([^/@]*@)?", "", uri.rstrip("/"))
    quoted = re.sub(
        r"[\\|{}\[\]<>\"^~_=!@#$%&*]",
        lambda match: f"%{ord(match[0]):02x}",
        f"{address}/dists/{suite}",
    )
    return quoted.replace("/", "_")


def release_fields(lists: Path, uri: str, suite: str) -> dict[str, str]:
    """Return the header fields of a downloaded Release file; empty if it does not exist."""
    for ending in ("InRelease", "Release"):
        try:
            with open(lists / f"{list_file_prefix(uri, suite)}_{ending}", errors="replace") as file:
                head = file.read(4096)
        except OSError:
            continue
        head = re.sub(r"\A-----BEGIN.*?\n\n", "", head, flags=re.DOTALL)
        return next(iter_stanzas(head), {})
    return {}


def _read_origins(
    entries: tuple[SourceEntry, ...], lists: Path
) -> dict[tuple[str, str], tuple[str, str]]:
    origins = {}
    for entry in entries:
        for uri in entry.uris:
            fields = release_fields(lists, uri, entry.suite)
            if fields:
                origins[uri, entry.suite] = (fields.get("origin", ""), fields.get("codename", ""))
    return origins


def parse_host_config(dump: str) -> HostApt:
    """Parse the output of ``apt-config dump`` and the files it refers to."""
    config = _parse_dump(dump)
    settings = tuple(line for line in dump.splitlines() if _HONOURED_SETTINGS.match(line))
    entries = _read_entries(_source_files(config))
    lists = Path(_directory_setting(config, "Dir::State::lists", "lists"))
    return HostApt(
        settings=settings,
        entries=entries,
        origins=_read_origins(entries, lists),
        trusted=_directory_setting(config, "Dir::Etc::trusted", "trusted.gpg"),
        trusted_parts=_directory_setting(config, "Dir::Etc::trustedparts", "trusted.gpg.d"),
        netrc=_directory_setting(config, "Dir::Etc::netrc", "auth.conf"),
        netrc_parts=_directory_setting(config, "Dir::Etc::netrcparts", "auth.conf.d"),
    )


async def read_host_apt() -> HostApt:
    """Return this machine's apt configuration; raises :class:`MachineError` if none."""
    require_programs("apt-get", "apt-cache", "apt-config", "dpkg-deb")
    result = await run(["apt-config", "dump"])
    return parse_host_config(result.stdout.decode(errors="replace"))
