"""Names of Python distributions as indexes compare them (PEP 503)."""

from __future__ import annotations

import re

__all__ = ["name_of", "normalised"]


def normalised(name: str) -> str:
    """``name`` in lower case, runs of ``-``, ``_`` and ``.`` as one dash."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    """The normalised name that a requirement begins with: ``numpy`` of ``NumPy[x]>=1; …``."""
    return normalised(re.split(r"[^\w.-]", requirement, maxsplit=1)[0])
