"""Names and versions of Python distributions as indexes compare them (PEP 503, PEP 440)."""

from __future__ import annotations

import re


def normalize_name(name: str) -> str:
    """Return ``name`` in lower case, with runs of ``-``, ``_`` and ``.`` as one dash."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str:
    """Return the normalized name of a requirement: ``numpy`` for ``NumPy[x]>=1; …``."""
    return normalize_name(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])


def versions_equal(first: str, second: str) -> bool:
    """Return whether two spellings are one version: ``2022.06.15`` is ``2022.6.15`` (PEP 440)."""
    if first == second:
        return True
    from packaging.version import InvalidVersion, Version

    try:
        return Version(first) == Version(second)
    except InvalidVersion:
        return False
