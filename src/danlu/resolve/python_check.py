"""Whether locked packages still satisfy what is declared, without asking anybody.

For a lock that somebody edited: only what can be read off is checked, the names and versions of
plain requirements. What the packages need of each other is uv's business, at the next resolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from danlu.environment.lock import LockedPackage
from danlu.environment.names import normalised
from danlu.resolve.pylock import marker_environment
from danlu.resolve.python_wanted import gather
from danlu.sources.pypi.target import Target, fits

if TYPE_CHECKING:
    from danlu.environment.types import PythonPackages

__all__ = ["unsatisfied"]


def unsatisfied(
    packages: Sequence[LockedPackage],
    declared: Sequence[PythonPackages],
    project: Path,
    target: Target,
) -> list[str]:
    """One sentence for each thing that does not go together; empty where nothing is wrong."""
    from packaging.requirements import Requirement

    locked = {normalised(one.name): one for one in packages}
    wanted = gather(declared, project, target)
    environment = marker_environment(target)
    found: list[str] = []
    for line in (*wanted.lines, *wanted.constraints):
        requirement = Requirement(line.text)
        if requirement.marker and not requirement.marker.evaluate({**environment, "extra": ""}):
            continue
        one = locked.get(normalised(requirement.name))
        if one is None:
            if line in wanted.lines:
                found.append(f"{requirement.name} is declared and not locked")
        elif not requirement.specifier.contains(one.version, prereleases=True):
            found.append(f"{one.name} is locked at {one.version}, declared is {line.text}")
    for one in packages:
        if one.file.endswith(".whl") and not fits(one.file, target):
            found.append(f"{one.file} does not fit Python {target.python} on {target.libc}")
    return found
