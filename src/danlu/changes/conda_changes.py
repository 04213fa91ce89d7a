"""Conda packages that were installed by hand in an environment.

What is read comes from the writable layer, which is untrusted: see
:mod:`danlu.changes.environment_changes`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from danlu.engine.layer_reading import has_linked_directory, read_text
from danlu.environment.image_layout import CONDA_PREFIX
from danlu.sandbox.layer_view import LayerView
from danlu.util.decoding import decode_json

_PREFIX = CONDA_PREFIX.lstrip("/")
_RECORDS = f"{_PREFIX}/conda-meta"
#: conda's specification of package names and versions, without what no channel has.
_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]*")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.!+]*")


@dataclass(frozen=True)
class CondaChange:
    """A conda package installed by hand; ``requested`` unless it only came as a dependency.

    ``replaces`` means that the image has another version.
    """

    name: str
    version: str
    requested: bool
    replaces: bool = False


class _PathRecord(msgspec.Struct, frozen=True):
    path: str = ""
    sha256: str = ""
    sha256_in_prefix: str = ""


class _PathsRecord(msgspec.Struct, frozen=True):
    """The hashes of the files, after the prefix was written into them."""

    paths: tuple[_PathRecord, ...] = ()


class _CondaRecord(msgspec.Struct, frozen=True):
    """``conda-meta/NAME.json``; conda has one requested specification, rattler has several."""

    name: str
    version: str
    files: tuple[str, ...] = ()
    requested_spec: Any = None
    requested_specs: Any = None
    paths_data: _PathsRecord = _PathsRecord()

    @property
    def is_valid(self) -> bool:
        return bool(_NAME.fullmatch(self.name) and _VERSION.fullmatch(self.version))

    @property
    def requested(self) -> bool:
        return bool(self.requested_specs) or self.requested_spec not in (None, "", "None", [])


def find_conda_changes(
    upper: Path, view: LayerView, owned: dict[str, str]
) -> Iterator[CondaChange]:
    """Yield the packages that only the layer ``upper`` has, and add their files to ``owned``.

    The files of the versions that they replaced are added, too: a rebuild does not have them.
    """
    if has_linked_directory(upper, _RECORDS) or not (upper / _RECORDS).is_dir():
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
        owned[f"{_RECORDS}/history"] = ""
    for name, (file, record) in added.items():
        records = [*([replaced[name]] if name in replaced else ()), (file, record)]
        for path, listed in records:
            owned[f"{_RECORDS}/{path}"] = ""
            owned.update(_list_files(listed))
        yield CondaChange(name, record.version, record.requested, name in replaced)


def _list_files(record: _CondaRecord) -> Iterator[tuple[str, str]]:
    """Yield the files of a package with their hashes, empty if unknown."""
    hashes = {item.path: item.sha256_in_prefix or item.sha256 for item in record.paths_data.paths}
    for item in record.files:
        path = os.path.normpath(f"{_PREFIX}/{item}")
        # A record cannot hide changes outside the prefix.
        if path.startswith(f"{_PREFIX}/"):
            yield path, f"sha256={hashes[item]}" if hashes.get(item) else ""


def _parse_record(text: str | None) -> _CondaRecord | None:
    try:
        record = decode_json(text or "", _CondaRecord)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return record if record.is_valid else None


def render_conda_line(packages: tuple[CondaChange, ...]) -> list[str]:
    """Return the call that installs the requested packages, or all if none was requested."""
    requested = any(package.requested for package in packages)
    chosen = [item for item in packages if item.requested or item.replaces or not requested]
    names = ", ".join(f'"{package.name}={package.version}"' for package in chosen)
    return [f"install.conda_packages([{names}])"] if chosen else []
