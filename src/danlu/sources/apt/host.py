"""This machine's own apt: is it there, how is it configured, which archives does it use."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from danlu.errors import MachineError
from danlu.sources.apt.entries import Entry, parse_one_line, parse_stanzas, stanzas

__all__ = ["HostApt", "host_apt", "need"]

#: The machine's settings that hold for danlu's requests too: proxies, certificates, time-outs …
#: Not its taste: languages, extra index files, compression of lists.
_HONOURED = re.compile(
    r"Acquire::(?!IndexTargets|Languages|GzipIndexes|CompressionTypes|Changelogs)"
)

_PACKAGES = {"dpkg-deb": "dpkg", "tar": "tar"}


def need(*programs: str) -> None:
    """Raise :class:`MachineError` naming those ``programs`` that this machine lacks."""
    missing = [name for name in programs if shutil.which(name) is None]
    if not missing:
        return
    packages = sorted({_PACKAGES.get(name, "apt") for name in missing})
    raise MachineError(
        f"{' and '.join(missing)}: not found on this machine",
        hint=f"`base(os=…)` and system packages are resolved by apt: install {' '.join(packages)} "
        "with your distribution's package manager",
    )


class HostApt(msgspec.Struct, frozen=True):
    """What this machine's apt is told, as ``apt-config dump`` and its source files say.

    ``settings`` are lines of apt.conf(5) that danlu's own calls honour; ``entries`` its binary
    sources; ``origins`` maps (first URI, suite) to the Origin that the downloaded Release file
    states, for the entries that were downloaded.
    """

    settings: tuple[str, ...] = ()
    entries: tuple[Entry, ...] = ()
    origins: Mapping[tuple[str, str], tuple[str, str]] = {}
    trusted: str = "/etc/apt/trusted.gpg"
    trusted_parts: str = "/etc/apt/trusted.gpg.d"
    netrc: str = "/etc/apt/auth.conf"
    netrc_parts: str = "/etc/apt/auth.conf.d"


def _parse_dump(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if not name.endswith("::"):
            found[name] = value.strip().removesuffix(";").strip('"')
    return found


def _path(config: Mapping[str, str], name: str, default: str) -> str:
    """A ``Dir::`` setting as an absolute path: each level is relative to the one above it."""
    value = config.get(name) or default
    if value.startswith("/"):
        return value
    above = name.rpartition("::")[0]
    if above == "Dir":
        return str(Path(config.get("Dir", "/") or "/", value))
    return str(Path(_path(config, above, {"Dir::Etc": "etc/apt"}.get(above, "var/lib/apt")), value))


def _source_files(config: Mapping[str, str]) -> list[Path]:
    single = Path(_path(config, "Dir::Etc::sourcelist", "sources.list"))
    parts = Path(_path(config, "Dir::Etc::sourceparts", "sources.list.d"))
    files = [single] if single.is_file() else []
    if parts.is_dir():
        files += sorted(one for one in parts.iterdir() if one.suffix in (".list", ".sources"))
    return files


def _read_entries(files: list[Path]) -> tuple[Entry, ...]:
    found: list[Entry] = []
    for file in files:
        try:
            text = file.read_text(errors="replace")
        except OSError:  # not ours to read: apt as this user could not either
            continue
        found += parse_stanzas(text) if file.suffix == ".sources" else parse_one_line(text)
    return tuple(found)


def list_name(uri: str, suite: str) -> str:
    """The beginning of the names of apt's list files of one suite (apt's URItoFileName)."""
    address = re.sub(r"^[a-z0-9+.-]+:(//)?([^/@]*@)?", "", uri.rstrip("/"))
    quoted = re.sub(
        r"[\\|{}\[\]<>\"^~_=!@#$%&*]",
        lambda match: f"%{ord(match[0]):02x}",
        f"{address}/dists/{suite}",
    )
    return quoted.replace("/", "_")


def release_fields(lists: Path, uri: str, suite: str) -> dict[str, str]:
    """The head of a downloaded Release file; empty where there is none."""
    for ending in ("InRelease", "Release"):
        try:
            with open(lists / f"{list_name(uri, suite)}_{ending}", errors="replace") as file:
                head = file.read(4096)
        except OSError:
            continue
        head = re.sub(r"\A-----BEGIN.*?\n\n", "", head, flags=re.DOTALL)
        return next(stanzas(head), {})
    return {}


def _origins(entries: tuple[Entry, ...], lists: Path) -> dict[tuple[str, str], tuple[str, str]]:
    found = {}
    for entry in entries:
        for uri in entry.uris:
            fields = release_fields(lists, uri, entry.suite)
            if fields:
                found[uri, entry.suite] = (fields.get("origin", ""), fields.get("codename", ""))
    return found


def read_host(dump: str) -> HostApt:
    """What ``dump`` (of ``apt-config dump``) and the files it names say."""
    config = _parse_dump(dump)
    settings = tuple(line for line in dump.splitlines() if _HONOURED.match(line))
    entries = _read_entries(_source_files(config))
    lists = Path(_path(config, "Dir::State::lists", "lists"))
    return HostApt(
        settings=settings,
        entries=entries,
        origins=_origins(entries, lists),
        trusted=_path(config, "Dir::Etc::trusted", "trusted.gpg"),
        trusted_parts=_path(config, "Dir::Etc::trustedparts", "trusted.gpg.d"),
        netrc=_path(config, "Dir::Etc::netrc", "auth.conf"),
        netrc_parts=_path(config, "Dir::Etc::netrcparts", "auth.conf.d"),
    )


async def host_apt() -> HostApt:
    """This machine's apt. Raises :class:`MachineError` where it has none."""
    from danlu.util.process import run

    need("apt-get", "apt-cache", "apt-config", "dpkg-deb")
    result = await run(["apt-config", "dump"])
    return read_host(result.stdout.decode(errors="replace"))
