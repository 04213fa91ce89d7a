"""Whether a whole set of packages made by somebody else has what is declared beside it.

Only what can be read off is checked, the names and versions of requirements; what the packages
need of each other was the business of whoever made the set.
"""

from __future__ import annotations

from collections.abc import Sequence

from danlu.environment.lock import LockedPackage
from danlu.environment.names import normalised
from danlu.resolve.pylock import marker_environment
from danlu.resolve.python_wanted import Wanted
from danlu.sources.pypi.target import Target

__all__ = ["unsatisfied"]


def unsatisfied(packages: Sequence[LockedPackage], wanted: Wanted, target: Target) -> list[str]:
    """One sentence for each thing that does not go together; empty where nothing is wrong."""
    from packaging.requirements import Requirement

    have = {normalised(one.name): one for one in packages}
    environment = marker_environment(target)
    found = [f"{one.spelled} is built from source, so it cannot be in it" for one in wanted.sources]
    for line in (*wanted.lines, *wanted.constraints):
        requirement = Requirement(line.text)
        if requirement.marker and not requirement.marker.evaluate({**environment, "extra": ""}):
            continue
        one = have.get(normalised(requirement.name))
        if one is None:
            if line in wanted.lines:
                found.append(f"it does not have {line.text}")
        elif not requirement.specifier.contains(one.version, prereleases=True):
            found.append(f"it has {one.name} {one.version}, declared is {line.text}")
    return found
