"""The conda environment that a build file declares: its packages, its channels, its Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from danlu.environment.image_layout import CONDA_PREFIX
from danlu.environment.types import Declaration, PythonInterpreter, UvTool
from danlu.graph.ops import FileEntry
from danlu.graph.types import digest_of
from danlu.util.urls import strip_credentials

if TYPE_CHECKING:
    from danlu.environment.lock import LockedBase
    from danlu.environment.types import Environment, ProjectDigests


#: A token in the address of a channel: ``https://host/t/TOKEN/channel`` (conda's own form).
_CHANNEL_TOKEN = re.compile(r"(://[^/\s]+)/t/[^/\s]+")

PIXI_HINT = (
    "`pixi workspace export conda-environment environment.yml` writes a file that danlu reads"
)
"""What to do with a manifest of pixi."""


class CondaEnvironment(Declaration, frozen=True):
    """``install.conda()``: a conda environment, whose Python is the environment's."""


class CondaPackages(Declaration, frozen=True):
    """``install.conda_packages(names, channels, env_file)``.

    ``names`` are match specifications (``numpy=1.26``, ``conda-forge::gcc``); ``env_file`` is a
    path relative to the project. ``source`` names the declaration that implies the packages, if the
    user did not declare them.
    """

    names: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    env_file: str = ""
    source: str = ""

    def project_files(self) -> tuple[str, ...]:
        return (self.env_file,) if self.env_file else ()


class CondaChannels(Declaration, frozen=True):
    """``config.conda_channel(channel)``: the text of a ``.condarc``.

    It is used to resolve, and written to the image without credentials.
    """

    source: str

    def config_files(self) -> tuple[FileEntry, ...]:
        text = strip_channel(self.source).strip("\n") + "\n"
        return (FileEntry(f"{CONDA_PREFIX}/.condarc", content=text),)


def strip_channel(text: str) -> str:
    """Return ``text`` with credentials and tokens removed from the addresses in it."""
    return _CHANNEL_TOKEN.sub(r"\1", strip_credentials(text))


def has_conda(environment: Environment) -> bool:
    """Return whether the environment has a conda environment."""
    return any(
        isinstance(item, CondaEnvironment | CondaPackages) for item in environment.declarations
    )


def has_conda_python(environment: Environment) -> bool:
    """Return whether the interpreter is conda's, if the environment needs one.

    It is not if conda packages are only implied: a tool such as pixi changes nobody's Python.
    """
    declared = any(not packages.source for packages in environment.find_all(CondaPackages))
    return declared or environment.find(CondaEnvironment) is not None


def list_conda_packages(
    environment: Environment, *, python: bool, version: str
) -> tuple[CondaPackages, ...]:
    """Return all conda packages: those declared, and an interpreter if ``python``.

    ``version`` is the interpreter's, empty for any.
    """
    declared = environment.find_all(CondaPackages)
    if not python or not has_conda_python(environment):
        return declared
    spec = f"python={version}" if version else "python"
    # As `conda create` does. pip is not part of Python in conda, and `pip install` must work.
    names = (spec, "pip") if environment.python else (spec,)
    caller = environment.find(PythonInterpreter) or environment.find(UvTool)
    source = "install.python" if environment.python else "install.python_packages"
    implied = CondaPackages(names, source=source)
    if caller is not None:
        implied = CondaPackages(names, source=source, span=caller.span)
    return (*declared, implied)


def digest_conda_inputs(
    packages: Sequence[CondaPackages],
    environment: Environment,
    base: LockedBase,
    digests: ProjectDigests,
    platform: str,
) -> str:
    """Return the digest of what the conda packages are resolved from."""
    names = sorted({strip_channel(name) for item in packages for name in item.names})
    channels = [strip_channel(name) for item in packages for name in item.channels]
    files = sorted((item.env_file, digests.files.get(item.env_file, "")) for item in packages)
    settings = environment.find(CondaChannels)
    source = strip_channel(settings.source) if settings else ""
    inputs = ["conda", names, channels, files, source, base.libc, platform]
    virtual = [pair for item in environment.declarations for pair in item.virtual_packages()]
    return digest_of([*inputs, virtual] if virtual else inputs)
