"""Parts of a Debian package's version (Debian Policy 5.6.12)."""

from __future__ import annotations

import re


def upstream_version(version: str) -> str:
    """Return ``3.11.2`` for ``1:3.11.2-6+deb12u6``."""
    text = version.partition(":")[2] if ":" in version else version
    return text.rpartition("-")[0] if "-" in text else text


def release_version(version: str) -> str:
    """Return the version as its authors write it: ``1.19`` for ``2:1.19~1``.

    By convention ``+`` and ``~`` begin what the packagers add: ``1.8.4+dfsg-1`` is 1.8.4.
    """
    return re.split(r"[+~]", upstream_version(version))[0]
