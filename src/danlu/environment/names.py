"""Names and versions of Python distributions as indexes compare them (PEP 503, PEP 440)."""

from __future__ import annotations

import re

__all__ = ["name_of", "normalised", "same_version"]


def normalised(name: str) -> str:
    """``name`` in lower case, runs of ``-``, ``_`` and ``.`` as one dash."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    """The normalised name that a requirement begins with: ``numpy`` of ``NumPy[x]>=1; …``."""
    return normalised(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])


def same_version(first: str, second: str) -> bool:
    """Whether two spellings mean one version: ``2022.06.15`` is ``2022.6.15`` (PEP 440)."""
    if first == second:
        return True
    from packaging.version import InvalidVersion, Version

    try:
        return Version(first) == Version(second)
    except InvalidVersion:
        return False
