"""Choose the base: this machine's distribution, unless its Python version does not match."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from danlu.convert.draft import BuildFileDraft

#: The Python version of each release (packages.debian.org, packages.ubuntu.com).
PYTHONS = {
    "debian13": "3.13",
    "debian12": "3.11",
    "debian11": "3.9",
    "ubuntu24.04": "3.12",
    "ubuntu22.04": "3.10",
    "ubuntu20.04": "3.8",
}

_DEFAULT_RELEASE = "debian12"

#: Releases by codename, for derivatives that name the release they are based on.
_CODENAMES = {
    "bullseye": "debian11",
    "bookworm": "debian12",
    "trixie": "debian13",
    "focal": "ubuntu20.04",
    "jammy": "ubuntu22.04",
    "noble": "ubuntu24.04",
}


def detect_release(os_release: Path = Path("/etc/os-release")) -> str:
    """Return this machine's release for ``base(os=…)``; Debian 12 for other distributions."""
    try:
        text = os_release.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _DEFAULT_RELEASE
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    name = f"{fields.get('ID', '')}{fields.get('VERSION_ID', '')}"
    codename = fields.get("UBUNTU_CODENAME") or fields.get("VERSION_CODENAME", "")
    return name if name in PYTHONS else _CODENAMES.get(codename, _DEFAULT_RELEASE)


def choose_base(draft: BuildFileDraft, *, own: str, wanted: str = "") -> None:
    """Set the base and Python of ``draft``; ``wanted`` is a version specifier (``>=3.12``)."""
    family = "".join(filter(str.isalpha, own))
    order = sorted(PYTHONS, key=lambda os: (os != own, not os.startswith(family)))
    fitting = [os for os in order if _matches_specifier(PYTHONS[os], wanted)]
    draft.os = fitting[0] if fitting else own
    if draft.needs_python and not draft.python:
        draft.python = PYTHONS[draft.os]
    elif draft.python and not fitting:
        return  # danlu installs exactly this one
    if wanted and not fitting:
        have = ", ".join(sorted(set(PYTHONS.values()), key=lambda version: int(version[2:])))
        draft.notes.append(
            f"no distribution provides Python {wanted} (available: {have}); "
            f"the build file uses {draft.python or PYTHONS[draft.os]}"
        )
    elif draft.os != own:
        draft.notes.append(f"{draft.os} was chosen as the base because it provides Python {wanted}")


def parse_image_release(reference: str) -> str:
    """Return ``debian12`` for ``debian:bookworm-slim``; empty if the name contains no release."""
    path, _, tag = reference.partition("@")[0].rpartition(":")
    family = path.rsplit("/", 1)[-1]
    if family not in ("debian", "ubuntu") or "/" in tag:
        return ""
    word = tag.partition("-")[0]
    return _CODENAMES.get(word, f"{family}{word}")


def _matches_specifier(version: str, wanted: str) -> bool:
    if not wanted:
        return True
    try:
        # The patch release of a distribution is unknown: both an early and a late one may match.
        return SpecifierSet(wanted).contains(f"{version}.99") or SpecifierSet(wanted).contains(
            f"{version}.2"
        )
    except InvalidSpecifier:
        return True
