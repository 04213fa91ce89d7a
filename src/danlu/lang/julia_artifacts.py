"""Binary artifacts of Julia packages (``Artifacts.toml``): which of them a platform gets.

The rules are those of Julia's ``Base.BinaryPlatforms``: a tag that only one side has does not
matter, and of several that match the last wins when they are sorted by their tags.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from danlu.errors import OutsideError

ARTIFACT_FILES = ("JuliaArtifacts.toml", "Artifacts.toml")

_TREE = re.compile(r"[0-9a-f]{40}")

#: Fields that are not tags of a platform.
_OTHER_FIELDS = ("git-tree-sha1", "download", "lazy")


def select_artifacts(text: str, host: Mapping[str, str], *, name: str) -> dict[str, str]:
    """Return the hashes of the artifacts to install by name; lazy ones are not among them.

    ``host`` are the tags of the platform: ``arch``, ``os``, ``libc``, ``julia_version`` …. Raises
    :class:`OutsideError`, with ``name``, if the file is invalid.
    """
    try:
        entries = tomllib.loads(text)
    except ValueError as error:
        raise OutsideError(f"{name} has an invalid Artifacts.toml: {error}") from error
    selected = {}
    for artifact, value in entries.items():
        choices = value if isinstance(value, list) else [value]
        matching = [
            choice for choice in choices if isinstance(choice, dict) and _matches_host(choice, host)
        ]
        if not matching:
            continue
        chosen = max(matching, key=_list_tags)
        tree = str(chosen.get("git-tree-sha1", ""))
        if not _TREE.fullmatch(tree):
            raise OutsideError(f"{name} has an invalid Artifacts.toml: {artifact} has no hash")
        if not chosen.get("lazy"):
            selected[artifact] = tree
    return selected


def _list_tags(choice: Mapping[str, Any]) -> list[tuple[str, str]]:
    return sorted((key, str(tag)) for key, tag in choice.items() if key not in _OTHER_FIELDS)


def _matches_host(choice: Mapping[str, Any], host: Mapping[str, str]) -> bool:
    return all(
        _COMPARISONS.get(key, str.__eq__)(tag.lower(), host[key])
        for key, tag in _list_tags(choice)
        if key in host
    )


def _compare_first(count: int) -> Callable[[str, str], bool]:
    """Return a comparison of the first parts of versions."""

    def compare(one: str, other: str) -> bool:
        return one.split(".")[:count] == other.split(".")[:count]

    return compare


_COMPARISONS: Mapping[str, Callable[[str, str], bool]] = {
    "julia_version": _compare_first(2),
    "libgfortran_version": _compare_first(1),
}
