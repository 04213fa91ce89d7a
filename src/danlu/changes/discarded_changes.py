"""Say how much a removed environment loses that was changed by hand in it.

Counted, not compared as `danlu commit` does, because `danlu down` should not take as long.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator

from danlu.changes.docker_changes import list_container_changes
from danlu.changes.file_changes import is_volatile
from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.registry import find_engine
from danlu.errors import DanluError

_MAX_PLACES = 3


def describe_discarded_changes(environment: EnvironmentDirectory) -> str:
    """Return a sentence on the changed files that go with an environment; empty if none do."""
    engine = environment.read_spec().engine
    if not find_engine(engine).features.keeps_files or not environment.was_started():
        return ""
    try:
        paths = (
            _list_layer(environment.upper)
            if find_engine(engine).features.writes_upper
            else list_container_changes(environment)
        )
    except DanluError:
        # Removing the environment reports it.
        return ""
    places = Counter(_name_place(path) for path in _drop_parents(paths) if not is_volatile(path))
    count = places.total()
    if not count:
        return ""
    common = sorted(places, key=lambda place: (-places[place], place))[:_MAX_PLACES]
    more = ", …" if len(places) > _MAX_PLACES else ""
    what = "1 changed file" if count == 1 else f"{count} changed files"
    return f"discarded {what} ({', '.join(common)}{more}); `danlu commit` keeps such changes"


def _list_layer(upper: os.PathLike[str]) -> Iterator[str]:
    """Yield what is in a writable layer, except what this account cannot read."""
    for directory, _, names in os.walk(upper):
        place = os.path.relpath(directory, upper)
        yield from (os.path.normpath(f"{place}/{name}") for name in names)


def _drop_parents(paths: Iterable[str]) -> set[str]:
    """Return the paths without the directories of others."""
    found = set(paths)
    return found - {path.rpartition("/")[0] for path in found}


def _name_place(path: str) -> str:
    """Return the directory of a path, or what is above that."""
    return "/" + "/".join(path.split("/")[:-1][:2])
