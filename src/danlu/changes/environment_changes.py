"""What was changed by hand in an environment: packages, accounts, and other files.

The writable layer is untrusted: programs inside wrote it. No link in it is followed, what is read
is bounded, and only valid names and versions get into lines of a build file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from danlu.changes.account_changes import AccountChanges, find_account_changes
from danlu.changes.apt_origins import AptPackages
from danlu.changes.conda_changes import CondaChange, find_conda_changes
from danlu.changes.file_changes import (
    ChangedFile,
    find_file_changes,
)
from danlu.changes.python_changes import PythonChange, find_python_changes
from danlu.changes.system_changes import SystemChanges, find_system_changes
from danlu.changes.xattr_commands import find_xattr_problem
from danlu.engine.layer_changes import UnreproducedChange
from danlu.sandbox.layer_view import LayerView


@dataclass(frozen=True)
class EnvironmentChanges:
    """Everything that differs from the image.

    Attributes:
        python: Distributions that were installed or upgraded.
        conda: Conda packages that were installed or upgraded.
        system: Packages of the distribution.
        accounts: Users and groups.
        files: Other files, directories and links, by path.
        problems: What a rebuild will lack.
    """

    python: tuple[PythonChange, ...] = ()
    conda: tuple[CondaChange, ...] = ()
    system: SystemChanges = field(default_factory=SystemChanges)
    accounts: AccountChanges = field(default_factory=AccountChanges)
    files: tuple[ChangedFile, ...] = ()
    problems: tuple[UnreproducedChange, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was changed."""
        return self == EnvironmentChanges()


def collect_changes(
    upper: Path,
    below: Sequence[Path],
    *,
    lost: Sequence[UnreproducedChange] = (),
    mount_points: Sequence[str] = (),
    included: Sequence[str] = (),
    secrets: Collection[str] = (),
    available: AptPackages | None = None,
) -> EnvironmentChanges:
    """Compare a finalized writable layer with the layers ``below`` (lowest first).

    ``lost`` are changes that are not in the layer; ``mount_points`` are paths of other file
    systems, for which directories were made; ``included`` are private files that are copied, and
    ``secrets`` values that make a file private; ``available`` are the packages of archives that a
    rebuild has (:func:`~danlu.changes.apt_origins.find_apt_packages`).
    """
    view = LayerView(below)
    owned: dict[str, str] = {}
    # First: the packages of Python among them have distribution metadata, too.
    conda = tuple(find_conda_changes(upper, view, owned))
    system = find_system_changes(upper, view, owned, available)
    python = find_python_changes(upper, view, owned, skipped=set(owned))
    accounts = find_account_changes(upper, view)
    files = find_file_changes(upper, view, owned, included=included, secrets=secrets)
    files = [_check_xattrs(item, upper, view, system) for item in files]
    files = list(_drop_mount_points(files, mount_points))
    problems = [
        *(
            UnreproducedChange(
                f"{name} needs {missing}, which is not installed", "a build installs it"
            )
            for name, missing in python.unmet
        ),
        *(
            UnreproducedChange(
                f"{name} {old} became {new}", "`danlu lock --upgrade` chooses versions of apt"
            )
            for name, old, new in system.replaced
        ),
        *(
            UnreproducedChange(
                f"package {name} {version}",
                "no archive of the build file has it: install its .deb with io.copy() and run(), or"
                " declare its archive with config.apt_source()",
            )
            for name, version in system.local
        ),
        *(
            UnreproducedChange(what, "call the program in a run()")
            for what in ["what dpkg-divert or dpkg-statoverride changed"] * system.has_own_rules
        ),
        *(UnreproducedChange(*item) for item in accounts.problems),
        *lost,
        *(UnreproducedChange(item.path, item.problem) for item in files if item.problem),
    ]
    return EnvironmentChanges(
        python.packages, conda, system, accounts, tuple(files), tuple(problems)
    )


def _check_xattrs(
    change: ChangedFile, upper: Path, view: LayerView, system: SystemChanges
) -> ChangedFile:
    """Add the problem of a change whose attributes no program of the image sets."""
    if change.problem or not (change.xattrs or change.lost_xattrs):
        return change

    def has_file(path: str) -> bool:
        return (upper / path).is_file() or view.entry(tuple(path.split("/"))) is not None

    problem = find_xattr_problem(change.xattrs, change.lost_xattrs, has_file, system.installed)
    return replace(change, problem=problem)


def _drop_mount_points(
    changes: Sequence[ChangedFile], points: Sequence[str]
) -> Iterator[ChangedFile]:
    """Yield the changes without directories that were only made to mount something in them."""
    needed = {
        change.path.rpartition("/")[0]
        for change in changes
        if not any(point == change.path or point.startswith(f"{change.path}/") for point in points)
    }
    for change in changes:
        made = any(point == change.path or point.startswith(f"{change.path}/") for point in points)
        inner = any(path == change.path or path.startswith(f"{change.path}/") for path in needed)
        if not made or inner or change.type != "directory" or change.kind != "added":
            yield change
