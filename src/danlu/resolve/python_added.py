"""Requirements added to a resolution that otherwise stays: uv is asked for those alone.

Most of a resolution is asking indexes about each package on the way. Where this machine remembers
which requirements the locked packages are the answer to, an answer to the *new* ones that leaves
every locked version as it is answers all of them: the locked packages need nothing outside
themselves, and what the new ones need of them was looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from danlu.environment.lock import LockedPackage
from danlu.environment.names import normalised
from danlu.errors import ResolveError
from danlu.resolve.python_locked import preference, stays
from danlu.resolve.python_requirements import write_requirements
from danlu.resolve.python_task import Task
from danlu.sources.pypi import File, Uv, locate_files
from danlu.util.notes import note, noted

__all__ = ["remember_answer", "resolve_added"]

#: How long (seconds) it is remembered what a lock's packages answer.
_REMEMBERED = 90 * 86400.0


async def resolve_added(task: Task, uv: Uv, setting: object) -> tuple[File, ...] | None:
    """The files that the task's new requirements bring beside all that is kept.

    None where that is not to be had so, and everything has to be resolved. ``setting`` is what
    narrows an answer beside the requirements; the indexes do not, as locked files have hashes.
    """
    before = noted(
        _notes(task), _question(setting, task.kept.values()), frozenset[str], seconds=_REMEMBERED
    )
    if before is None or not before <= {line.text for line in task.wanted.lines}:
        return None
    new = tuple(line for line in task.wanted.lines if line.text not in before)
    if not new:
        return ()
    try:
        files = await locate_files(
            uv,
            write_requirements(replace(task.wanted, lines=new), task.scratch),
            task.request.target,
            scratch=task.scratch,
            dependencies=True,
            preferences=[pin for one in task.kept.values() if (pin := preference(one))],
        )
    except ResolveError:
        # Together with everything else it may be possible; if not, that refusal is the whole one.
        return None
    met = {normalised(file.name): file for file in files}
    formats = task.wanted.formats
    for name in met.keys() & task.kept.keys():
        if not stays(task.kept[name], met[name].version, formats):
            return None
    return tuple(file for name, file in met.items() if name not in task.kept)


def remember_answer(task: Task, packages: Iterable[LockedPackage], setting: object) -> None:
    """Note that ``packages`` answer the task's requirements."""
    lines = sorted(line.text for line in task.wanted.lines)
    note(_notes(task), _question(setting, packages), lines, seconds=_REMEMBERED)


def _notes(task: Task) -> Path:
    return task.request.paths.cache / "answered"


def _question(setting: object, packages: Iterable[LockedPackage]) -> object:
    return [setting, sorted(packages, key=lambda one: one.name)]
