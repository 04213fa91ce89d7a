"""Merge two versions of ``danlu.lock`` whose branches both changed it.

Nothing is resolved here. What both versions pin is kept as preferences, and the tables that differ
lose their ``inputs``, so that the next resolution makes one consistent set of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace
from packaging.version import InvalidVersion, Version

from danlu.environment.lock import FunctionLock, Lock, LockedPackage
from danlu.errors import LockError
from danlu.lang.functions import LOCK_SECTIONS
from danlu.resolve.lockfile import has_conflict_markers, read_lock

Item = TypeVar("Item", bound=msgspec.Struct)

_MARKER = re.compile(r"(<{7}|\|{7}|={7}|>{7})( .*)?")


def merge_conflicted_text(text: str, file: str) -> Lock:
    """Return the merged lock of a lockfile with git's conflict markers.

    Raises :class:`LockError` if a side is not a lockfile: its versions would be lost.
    """
    sides: dict[str, list[str]] = {"<": [], "=": []}
    side = ""
    for line in text.splitlines(keepends=True):
        if match := _MARKER.fullmatch(line.rstrip("\r\n")):
            side = match[1][0]
            continue
        for name, lines in sides.items():
            # Lines outside conflicts belong to both; those of the common ancestor to none.
            if side in ("", ">", name):
                lines.append(line)
    try:
        ours, theirs = (read_lock("".join(lines), file, is_merged=True) for lines in sides.values())
    except LockError as error:
        raise LockError(
            f"a side of the conflicts in {file} is not a lockfile: {error}",
            hint=f"take the other side (`git checkout --ours {file}` or `--theirs`), then run"
            " `danlu lock`",
        ) from error
    return merge_locks(Lock(), ours, theirs)


def merge_lock_texts(base: str, ours: str, theirs: str, *, file: str) -> Lock:
    """Return the merged lock of three versions, as git passes them to a merge driver.

    ``base`` is their common ancestor. Either of ``ours`` and ``theirs`` may itself have conflict
    markers. Raises :class:`LockError` if one is invalid.
    """
    try:
        ancestor = read_lock(base, file) if base.strip() else Lock()
    except LockError:
        ancestor = Lock()  # it only decides which side's version is newer
    sides = [
        merge_conflicted_text(text, file) if has_conflict_markers(text) else read_lock(text, file)
        for text in (ours, theirs)
    ]
    return merge_locks(ancestor, *sides)


def merge_locks(base: Lock, ours: Lock, theirs: Lock) -> Lock:
    """Return a lock with what ``ours`` and ``theirs`` pin; ``base`` is their ancestor or empty."""
    merged: dict[str, FunctionLock] = {}
    for name in {**ours.functions, **theirs.functions}:
        first, second = ours.functions.get(name), theirs.functions.get(name)
        before = base.functions.get(name)
        if first is not None and second is not None:
            merged[name] = _merge_functions(before, first, second)
        elif (known := first or second) and known != before:  # otherwise one side removed it
            merged[name] = known
    return Lock(merged)


def _merge_functions(
    base: FunctionLock | None, ours: FunctionLock, theirs: FunctionLock
) -> FunctionLock:
    if ours == theirs or theirs == base or ours.platform != theirs.platform:
        return ours
    if ours == base:
        return theirs
    return replace(
        ours,
        python=ours.python or theirs.python,
        system=_merge_tables(ours.system, theirs.system),
        conda=_merge_tables(ours.conda, theirs.conda),
        packages=_merge_packages(base.packages if base else (), ours.packages, theirs.packages),
        build_packages=_unite_items(
            ours.build_packages, theirs.build_packages, lambda item: (item.name, item.version)
        ),
        packages_inputs=ours.packages_inputs if ours.packages == theirs.packages else "",
        package_settings=tuple(dict.fromkeys((*ours.package_settings, *theirs.package_settings))),
        sections=_merge_sections(ours.sections, theirs.sections),
    )


def _merge_tables(ours: Any, theirs: Any) -> Any:
    """Return a table with the packages of both, to be resolved again if they differ."""
    if ours is None or theirs is None or ours == theirs:
        return ours or theirs
    packages = _unite_items(ours.packages, theirs.packages, lambda item: item.name)
    return replace(ours, packages=packages, inputs="")


def _merge_packages(
    base: tuple[LockedPackage, ...],
    ours: tuple[LockedPackage, ...],
    theirs: tuple[LockedPackage, ...],
) -> tuple[LockedPackage, ...]:
    """Return the packages of both sides: what only one side changed, otherwise what is newer."""
    before = {package.name: package for package in base}
    merged = {package.name: package for package in ours}
    for package in theirs:
        known = merged.get(package.name)
        ancestor = before.get(package.name)
        if (
            known is None
            or known == ancestor
            or (package != ancestor and _parse_version(package) > _parse_version(known))
        ):
            merged[package.name] = package
    return tuple(merged[name] for name in sorted(merged))


def _parse_version(package: LockedPackage) -> Version:
    try:
        return Version(package.version)
    except InvalidVersion:
        return Version("0")


def _merge_sections(
    ours: Mapping[str, tuple[msgspec.Struct, ...]], theirs: Mapping[str, tuple[msgspec.Struct, ...]]
) -> dict[str, tuple[msgspec.Struct, ...]]:
    merged = {**theirs, **ours}
    for name in ours.keys() & theirs.keys():
        # Pins with `inputs` were resolved together: those of two resolutions may not fit.
        if not any("inputs" in pin.__struct_fields__ for pin in ours[name]):
            merged[name] = _unite_items(ours[name], theirs[name], partial(_identify_pin, name))
    return merged


def _identify_pin(section: str, pin: Any) -> str:
    return LOCK_SECTIONS[section].describe(pin)[0]


def _unite_items(
    ours: tuple[Item, ...], theirs: tuple[Item, ...], key: Callable[[Any], Any]
) -> tuple[Item, ...]:
    """Return the items of both, ours if they have the same key, in the order of the keys."""
    united = {**{key(item): item for item in theirs}, **{key(item): item for item in ours}}
    return tuple(united[name] for name in sorted(united))
