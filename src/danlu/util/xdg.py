"""The XDG base directories, in a module that imports nothing slow."""

from __future__ import annotations

import os

# Not typing.TYPE_CHECKING: importing typing takes longer than this module's users may.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def base_directory(environ: Mapping[str, str], variable: str, default: str) -> str:
    """Return the directory that ``variable`` names, or ``default`` below the home directory.

    A relative path is ignored, as the XDG base directory specification requires.
    """
    value = environ.get(variable, "")
    if value.startswith("/"):
        return value
    return os.path.join(environ.get("HOME") or os.path.expanduser("~"), default)
