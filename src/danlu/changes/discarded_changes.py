"""Say how much a removed environment loses that was changed by hand in it.

Counted, not compared as `danlu commit` does, because `danlu down` should not take as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from danlu.engine.environment_directory import EnvironmentDirectory
from danlu.engine.layer_changes import is_volatile
from danlu.engine.registry import find_engine
from danlu.errors import DanluError

_MAX_PLACES = 3


def describe_discarded_changes(environment: EnvironmentDirectory) -> str:
    """Return a sentence on the changed files that go with an environment; empty if none do."""
    engine = find_engine(environment.read_spec().engine)
    if not engine.features.keeps_files or not environment.was_started():
        return ""
    try:
        paths = engine.load_commands().list_changes(environment)
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


def _drop_parents(paths: Iterable[str]) -> set[str]:
    """Return the paths without the directories of others."""
    found = set(paths)
    return found - {path.rpartition("/")[0] for path in found}


def _name_place(path: str) -> str:
    """Return the directory of a path, or what is above that."""
    return "/" + "/".join(path.split("/")[:-1][:2])
