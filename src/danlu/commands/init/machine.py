"""Which base suits: the machine's own distribution, unless its Python is not the one asked for."""

from __future__ import annotations

import re
from pathlib import Path

from danlu.commands.init.draft import Draft

__all__ = ["PYTHONS", "choose_base", "here", "release_of_image"]

#: The Python that a release has as its own (packages.debian.org, packages.ubuntu.com).
PYTHONS = {
    "debian13": "3.13",
    "debian12": "3.11",
    "debian11": "3.9",
    "ubuntu24.04": "3.12",
    "ubuntu22.04": "3.10",
    "ubuntu20.04": "3.8",
}

_DEFAULT = "debian12"

#: Derivatives whose release is that of a Debian or Ubuntu: by the codename they say.
_CODENAMES = {
    "bullseye": "debian11",
    "bookworm": "debian12",
    "trixie": "debian13",
    "focal": "ubuntu20.04",
    "jammy": "ubuntu22.04",
    "noble": "ubuntu24.04",
}


def here(os_release: Path = Path("/etc/os-release")) -> str:
    """This machine's release as ``base(os=…)`` spells it; Debian 12 where it is another kind."""
    try:
        text = os_release.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _DEFAULT
    fields = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    name = f"{fields.get('ID', '')}{fields.get('VERSION_ID', '')}"
    codename = fields.get("UBUNTU_CODENAME") or fields.get("VERSION_CODENAME", "")
    return name if name in PYTHONS else _CODENAMES.get(codename, _DEFAULT)


def choose_base(draft: Draft, *, own: str, wanted: str = "") -> None:
    """Set base and Python of ``draft``; ``wanted`` is a specifier (``>=3.12``, ``==3.10.*``)."""
    family = "".join(filter(str.isalpha, own))
    order = sorted(PYTHONS, key=lambda os: (os != own, not os.startswith(family)))
    fitting = [os for os in order if _fits(PYTHONS[os], wanted)]
    draft.os = fitting[0] if fitting else own
    if draft.needs_python:
        draft.python = PYTHONS[draft.os]
    if wanted and not fitting:
        have = ", ".join(sorted(set(PYTHONS.values()), key=lambda one: int(one[2:])))
        draft.notes.append(
            f"no distribution has a Python {wanted} as its own (they have {have}); "
            f"the file says {draft.python or PYTHONS[draft.os]}"
        )
    elif draft.os != own:
        draft.notes.append(f"{draft.os} is the base because Python {wanted} is asked for")


def release_of_image(reference: str) -> str:
    """``debian12`` for ``debian:bookworm-slim``; empty where the name says no release."""
    path, _, tag = reference.partition("@")[0].rpartition(":")
    family = path.rsplit("/", 1)[-1]
    if family not in ("debian", "ubuntu") or "/" in tag:
        return ""
    word = tag.partition("-")[0]
    return _CODENAMES.get(word, f"{family}{word}")


def _fits(version: str, wanted: str) -> bool:
    if not wanted:
        return True
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        # A release such as 3.11 stands for its last patch: `>=3.11.2` is not refused.
        return SpecifierSet(wanted).contains(f"{version}.99") or SpecifierSet(wanted).contains(
            f"{version}.2"
        )
    except InvalidSpecifier:
        return True
