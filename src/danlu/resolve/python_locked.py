"""How chosen files become entries of the lock, and when two of them are the same."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from danlu.environment.lock import LockedPackage
from danlu.environment.names import normalised, same_version
from danlu.resolve.python_wanted import Wanted
from danlu.sources.pypi import File, Pin
from danlu.sources.pypi.formats import Formats

__all__ = ["locked_file", "preference", "stays"]


def preference(one: LockedPackage) -> Pin | None:
    """What keeps a locked package at its version; None for one that the user's file places."""
    return Pin(one.name, one.version) if one.source in ("index", "sdist") else None


def stays(one: LockedPackage, version: str, formats: Formats) -> bool:
    """Whether the locked file still is what ``version`` of its package is to be made of."""
    return (
        one.source in ("index", "sdist")
        and formats.allow(one.name, wheel=one.source == "index")
        and same_version(one.version, version)
    )


def locked_file(file: File, wanted: Wanted) -> LockedPackage:
    """A chosen file as the lock keeps it: without its address, unless the user gave that."""
    package = LockedPackage(
        name=normalised(file.name),
        version=file.version,
        source="index" if file.kind == "wheel" else "sdist",
        file=file.file,
        sha256=file.sha256,
        size=file.size,
    )
    if not file.direct:
        return package
    if file.url.startswith("file:"):
        path = unquote(urlsplit(file.url).path)
        return replace(package, source="local", location=wanted.spelled.get(path, path))
    return replace(package, source="url", location=file.url)
