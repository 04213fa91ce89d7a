"""A CRAN mirror with the packages that a test writes."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path


def add_package(
    mirror: Path,
    name: str,
    version: str = "1.0",
    *,
    files: dict[str, str] | None = None,
    fields: dict[str, str] | None = None,
    place: str = "src/contrib",
) -> str:
    """Write a source package and return its stanza of the index."""
    described = {
        "Package": name,
        "Version": version,
        "Title": "A Test",
        "Description": "Made by a test.",
        "Author": "Ada",
        "Maintainer": "Ada <ada@example.org>",
        "License": "GPL-2",
        **(fields or {}),
    }
    text = "".join(f"{key}: {value}\n" for key, value in described.items())
    contents = {"DESCRIPTION": text, "NAMESPACE": 'exportPattern("^[a-z]")\n', **(files or {})}
    archive = mirror / place / f"{name}_{version}.tar.gz"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as tar:
        for path, content in contents.items():
            data = content.encode()
            member = tarfile.TarInfo(f"{name}/{path}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    kept = ("Package", "Version", "Depends", "Imports", "LinkingTo", "NeedsCompilation")
    return "".join(f"{key}: {described[key]}\n" for key in kept if key in described)


def write_index(mirror: Path, *stanzas: str) -> None:
    """Write ``PACKAGES.gz``."""
    directory = mirror / "src/contrib"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "PACKAGES.gz").write_bytes(gzip.compress("\n".join(stanzas).encode()))
