"""The keyring of another distribution, from its package in this machine's own archive.

Debian packages Ubuntu's archive keys and the reverse, so that the machine's own keys vouch for
those of the other distribution.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from danlu.errors import DanluError, MachineError, OutsideError
from danlu.sources.apt.archive import AptArchive, find_archive, find_release, has_sources_for
from danlu.sources.apt.deb_cache import DebCache, fetch_all
from danlu.sources.apt.host_config import HostApt
from danlu.sources.apt.private_apt import PrivateApt, open_private_apt
from danlu.sources.apt.resolver import resolve_install
from danlu.util.config import Configuration
from danlu.util.files import write_atomic
from danlu.util.process import run

#: A keyring that was extracted is used this long (seconds) before its package is read again.
_MAX_AGE = 30 * 24 * 3600
_MAX_BYTES = 1 << 20


class _KeyringPackage(msgspec.Struct, frozen=True):
    """The release of another family that has the keyring, its package, and the file in it.

    The archive of a release has all releases of its distribution; Debian 12 lacks Ubuntu's keys.
    """

    release: str
    package: str
    file: str


_PACKAGES = {
    "ubuntu": _KeyringPackage(
        "debian13", "ubuntu-keyring", "usr/share/keyrings/ubuntu-archive-keyring.gpg"
    ),
    "debian": _KeyringPackage(
        "ubuntu24.04", "debian-archive-keyring", "usr/share/keyrings/debian-archive-keyring.gpg"
    ),
}


async def add_keyring(
    archive: AptArchive, *, host: HostApt, config: Configuration, cache: Path
) -> AptArchive:
    """Return ``archive`` with the keyring of its distribution if it is foreign and names none.

    ``cache`` is ``Paths.cache/"apt"``. Keys that the machine trusts in any case stay trusted.
    Raises :class:`OutsideError` if the package cannot be had.
    """
    family = archive.distribution.family
    package = _PACKAGES.get(family)
    unsigned = [
        entry
        for entry in archive.entries
        if not entry.signed_by and ("trusted", "yes") not in entry.options
    ]
    if package is None or not unsigned or has_sources_for(family, host):
        return archive
    path = cache / "keyrings" / f"{family}-archive-keyring.gpg"
    if not path.exists() or path.stat().st_mtime < time.time() - _MAX_AGE:
        try:
            keys = await _extract_keyring(package, host, config, cache)
        except DanluError as error:
            if path.exists():
                keys = path.read_bytes()  # rewritten below, to be tried again after a while
            elif isinstance(error, MachineError):
                raise
            else:
                raise OutsideError(
                    f"no keyring for {family.capitalize()}'s packages, and this machine's archive"
                    f" does not provide {package.package}: {error.message}",
                    hint=f"set keyring in [mirrors.{family}] of config.toml to a file with the keys"
                    " of the mirror",
                ) from error
        write_atomic(path, keys + _read_trusted_keys(host))
    entries = [
        replace(entry, signed_by=str(path)) if entry in unsigned else entry
        for entry in archive.entries
    ]
    return replace(archive, entries=tuple(entries))


async def _extract_keyring(
    package: _KeyringPackage, host: HostApt, config: Configuration, cache: Path
) -> bytes:
    release = find_release(package.release)
    archive = find_archive(release, "amd64", host=host, config=config)
    private_apt = open_private_apt(archive, cache, host)
    await private_apt.refresh()
    plan = await resolve_install(private_apt, [package.package])
    deb = next(deb for deb in plan.debs if deb.name == package.package)
    debs = DebCache(cache / "debs")

    async def open_apt() -> PrivateApt:
        return private_apt

    await fetch_all(debs, [deb], open_apt)
    script = 'dpkg-deb --fsys-tarfile "$1" | tar -xO -f - "./$2"'
    result = await run(["sh", "-ec", script, "sh", str(debs.path(deb)), package.file])
    if result.code or not 0 < len(result.stdout) <= _MAX_BYTES:
        raise MachineError(f"{package.package} {deb.version} has no {package.file}")
    return result.stdout


def _read_trusted_keys(host: HostApt) -> bytes:
    """Return the keys in apt's own keyrings; binary keyrings can be concatenated (gpgv(1))."""
    files = [Path(host.trusted), *sorted(Path(host.trusted_parts).glob("*.gpg"))]
    seen: dict[str, bytes] = {}
    for file in files:
        if file.is_file():
            data = file.read_bytes()
            seen.setdefault(hashlib.sha256(data).hexdigest(), data)
    return b"".join(seen.values())
