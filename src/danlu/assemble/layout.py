"""Where things lie in an image: the few paths and variables that danlu itself decides."""

from __future__ import annotations

from danlu.environment.lock import LockedPython
from danlu.graph import Scheme

__all__ = ["EXTRA_SOURCES", "HOME", "PROJECT", "VENV", "base_environment", "scheme_of"]

#: The virtual environment of an image: its own, so that neither the distribution's packages nor
#: the base image's are touched.
VENV = "/opt/venv"

#: Where the project is seen in a running environment and in steps that ask for it.
PROJECT = "/workspace"

#: Where ``io.http`` puts files: envd's place, so that its build files find them.
EXTRA_SOURCES = "/home/envd/extra_source"

#: The home directory of steps.
HOME = "/root"


def scheme_of(python: LockedPython) -> Scheme:
    """Where wheels go for this interpreter."""
    minor = ".".join(python.version.split(".")[:2])
    return Scheme(
        prefix=VENV,
        version=minor,
        site_packages=f"lib/python{minor}/site-packages",
        interpreter=f"{VENV}/bin/python",
    )


def base_environment(python: LockedPython | None) -> tuple[tuple[str, str], ...]:
    """The variables every image of ours has."""
    variables = [("LANG", "C.UTF-8")]
    if python is not None:
        variables.append(("VIRTUAL_ENV", VENV))
    return tuple(variables)
