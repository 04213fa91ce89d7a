"""The version of a package that setuptools-scm (also in hatch-vcs) derives from git.

Only source files are copied for a build, without the repository. setuptools-scm reads the same
description from ``.git_archival.txt``, the file of an archive made by git (its documentation,
"Git archives"), and then takes all files for tracked ones. Uncommitted changes do not count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from danlu.errors import DanluError

#: The variable that decides the version. If it is set when a lock is made, it counts there; a
#: build gets the locked version.
VERSION_VARIABLE = "SETUPTOOLS_SCM_PRETEND_VERSION"

_PROGRAMS = re.compile(r"setuptools[-_.]scm|hatch[-_.]vcs|vcs[-_.]versioning", re.IGNORECASE)


def derives_version(place: Path) -> bool:
    """Return whether the package in a copied directory names one of these programs."""
    for name in ("pyproject.toml", "setup.py", "setup.cfg"):
        path = place / name
        is_read = path.is_file() and not path.is_symlink()
        if is_read and _PROGRAMS.search(path.read_text(encoding="utf-8", errors="replace")):
            return True
    return False


def write_description(
    place: Path, describe: Callable[[], tuple[str, str]] = lambda: ("", "0")
) -> None:
    """Write ``.git_archival.txt`` into a copy of a package whose version comes from git.

    ``describe`` returns git's description and the commit. Without it, the version is locked.
    """
    if not derives_version(place):
        return
    try:
        description, commit = describe()
    except DanluError:
        return  # no repository: the program reports it
    file = place / ".git_archival.txt"
    file.unlink(missing_ok=True)  # it may be a link to anywhere
    file.write_text(f"node: {commit}\ndescribe-name: {description}\n")


def list_version_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the user that decide versions."""
    return {name: text for name, text in environ.items() if name.startswith(VERSION_VARIABLE)}
