"""Conda packages that were installed by hand in an environment.

What is read comes from the writable layer, which is untrusted: see
:mod:`danlu.commands.environments.changes`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from danlu.environment.image_layout import CONDA_PREFIX
from danlu.sandbox.layer_view import LayerView

_PREFIX = CONDA_PREFIX.lstrip("/")
_RECORDS = f"{_PREFIX}/conda-meta"
#: conda's specification of package names and versions, without what no channel has.
_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]*")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.!+]*")


@dataclass(frozen=True)
class CondaChange:
    """A conda package installed by hand; ``requested`` unless it only came as a dependency."""

    name: str
    version: str
    requested: bool


class _CondaRecord(msgspec.Struct, frozen=True):
    """``conda-meta/NAME.json``; conda has one requested specification, rattler has several."""

    name: str
    version: str
    files: tuple[str, ...] = ()
    requested_spec: Any = None
    requested_specs: Any = None

    @property
    def is_valid(self) -> bool:
        return bool(_NAME.fullmatch(self.name) and _VERSION.fullmatch(self.version))

    @property
    def requested(self) -> bool:
        return bool(self.requested_specs) or self.requested_spec not in (None, "", "None", [])


def find_conda_changes(
    upper: Path, view: LayerView, owned: set[str], read_text: Callable[[Path], str | None]
) -> Iterator[CondaChange]:
    """Yield the packages that only the layer ``upper`` has, and add their files to ``owned``.

    The files of the versions that they replaced are added, too: a rebuild does not have them.
    """
    # A link in place of a directory could lead out of the layer.
    places = [upper / _PREFIX, *(upper / _PREFIX).parents, upper / _RECORDS]
    if any(place.is_symlink() for place in places if place.is_relative_to(upper)):
        return
    if not (upper / _RECORDS).is_dir():
        return
    replaced: dict[str, tuple[str, _CondaRecord]] = {}
    added: dict[str, tuple[str, _CondaRecord]] = {}
    for name in sorted(os.listdir(upper / _RECORDS)):
        if not name.endswith(".json"):
            continue
        lower = view.entry((*_RECORDS.split("/"), name))
        now = _parse_record(read_text(upper / _RECORDS / name))
        if now is not None and lower is None:
            added[now.name] = (name, now)
        elif now is None and lower is not None:
            old = _parse_record(read_text(Path(lower)))
            if old is not None:
                replaced[old.name] = (name, old)
    if added:
        owned.add(f"{_RECORDS}/history")
    for name, (file, record) in added.items():
        records = [(file, record), *([replaced[name]] if name in replaced else ())]
        for path, listed in records:
            owned.add(f"{_RECORDS}/{path}")
            # A record cannot hide changes outside the prefix.
            files = (os.path.normpath(f"{_PREFIX}/{item}") for item in listed.files)
            owned.update(file for file in files if file.startswith(f"{_PREFIX}/"))
        yield CondaChange(name, record.version, record.requested)


def _parse_record(text: str | None) -> _CondaRecord | None:
    try:
        record = msgspec.json.decode(text or "", type=_CondaRecord)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return record if record.is_valid else None


def render_conda_line(packages: tuple[CondaChange, ...]) -> list[str]:
    """Return the call that installs the requested packages, or all if none was requested."""
    chosen = [package for package in packages if package.requested] or packages
    names = ", ".join(f'"{package.name}={package.version}"' for package in chosen)
    return [f"install.conda_packages([{names}])"] if chosen else []
