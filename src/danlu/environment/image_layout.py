"""Paths in an image that danlu itself decides."""

from __future__ import annotations

from danlu.environment.lock import LockedPython
from danlu.graph.ops import InstallScheme

#: The virtual environment of an image, separate from the Python packages of the distribution and
#: of the base image.
VENV = "/opt/venv"

#: The conda environment of an image, and the value of its variable of the same name.
CONDA_PREFIX = "/opt/conda"

#: Where a standalone build of Python is unpacked.
STANDALONE_PYTHON = "/opt/python"

#: Where the project is mounted in a running environment and in steps that ask for it.
PROJECT = "/workspace"

#: Where ``io.http`` puts files. It is envd's directory, so that envd's build files find them.
EXTRA_SOURCES = "/home/envd/extra_source"

#: The home directory of the environment's user, and the working directory of ``run()``. envd uses a
#: subdirectory with the name of the project's directory; the same project has different names on
#: different machines, and an image must not depend on that
#: (docs/architecture/decisions.md#identity-at-start-not-at-build).
HOME = "/home/envd"

#: The environment's user, as in envd. The id is a constant, because an image contains none of the
#: machine's, unless ``config.owner`` sets another one.
USER_NAME = "envd"
USER_ID = 1000


def make_scheme(python: LockedPython) -> InstallScheme:
    """Return where wheels are installed for an interpreter."""
    minor = ".".join(python.version.split(".")[:2])
    library = f"{minor}t" if python.lacks_gil else minor
    return InstallScheme(
        prefix=VENV,
        version=minor,
        site_packages=f"lib/python{library}/site-packages",
        interpreter=f"{VENV}/bin/python",
    )
