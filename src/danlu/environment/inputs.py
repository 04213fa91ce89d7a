"""What the project's files say, as far as an environment names them, passed in as digests."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from danlu.environment.types import Copy, Environment, Run

__all__ = ["Inputs", "named_files", "needs_context"]


class Inputs(msgspec.Struct, frozen=True):
    """Digests (``sha256:…``) of what an environment takes from the project.

    ``files`` maps a path, as the build file names it, to the digest of its content: requirements
    files, local wheels, sources of ``io.copy``. ``packages`` maps every path that Python packages
    draw in, also through requirements files: wheels, archives, directories to build.
    ``context`` is the digest of the whole project where a step sees it, else empty.
    """

    files: Mapping[str, str] = {}
    packages: Mapping[str, str] = {}
    context: str = ""


def named_files(environment: Environment) -> tuple[str, ...]:
    """The paths of the project that the environment names, sorted, each once."""
    paths: set[str] = set()
    for packages in environment.python_packages:
        paths.update(packages.local_wheels)
        if packages.requirements:
            paths.add(packages.requirements)
    for step in environment.steps:
        if isinstance(step, Copy) and not step.image:
            paths.add(step.source)
    return tuple(sorted(paths))


def needs_context(environment: Environment) -> bool:
    """Whether some step sees the whole project."""
    return any(isinstance(step, Run) and step.mount_host for step in environment.steps)
