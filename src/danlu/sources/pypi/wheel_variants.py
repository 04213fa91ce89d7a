"""Wheels for one level of x86-64 processors (PEP 825), with the level in a label of their names.

uv chooses among them by the processor of the machine that it runs on, and only as a preview. An
image is for the level that its build file names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urldefrag

import msgspec

from danlu.errors import OutsideError
from danlu.graph.processor_level import PROCESSOR_LEVELS, to_variant
from danlu.sources.http import FetchedFile, fetch
from danlu.sources.pypi.platform_target import PlatformTarget, best_wheel
from danlu.sources.pypi.simple_index import fetch_changing, list_files
from danlu.sources.pypi.uv import Uv
from danlu.sources.pypi.variant_labels import split_variant_label
from danlu.util.tasks import run_concurrently

_LABEL = re.compile(r"[0-9a-z_.]+")
#: The property of the provider for x86-64, ``x86_64 :: level :: v3``.
_NAMESPACE, _FEATURE = "x86_64", "level"
_MAX_REQUESTS = 8
_MAX_DESCRIPTION = 1 << 20


class LevelWheel(msgspec.Struct, frozen=True):
    """A wheel for a level: its file name with the label, its hash and its size."""

    file: str
    sha256: str
    size: int


async def find_level_wheels(
    uv: Uv, wheels: Mapping[str, str], level: str, target: PlatformTarget, *, cache: Path
) -> dict[str, LevelWheel]:
    """Return the wheels for the highest level up to ``level`` that the indexes have, by package.

    ``wheels`` maps packages to their wheel for all processors. Packages without
    wheels for levels are not in the result. Raises :class:`OutsideError` if an index does not
    answer, or sends something else than a list of variants.
    """
    pages = await list_files(uv, list(wheels), cache=cache)
    names = [name for name in wheels if _variants_file(wheels[name]) in pages[name]]
    jobs = [
        partial(_choose_wheel, wheels[name], pages[name], level, target, cache) for name in names
    ]
    found = await run_concurrently(jobs, limit=_MAX_REQUESTS)
    return {name: wheel for name, wheel in zip(names, found, strict=True) if wheel is not None}


def _variants_file(wheel: str) -> str:
    """Return the file of an index that describes the variants of a wheel's version."""
    return "-".join((*wheel.split("-")[:2], "variants.json"))


async def _choose_wheel(
    wheel: str, files: Mapping[str, str], level: str, target: PlatformTarget, cache: Path
) -> LevelWheel | None:
    name = _variants_file(wheel)
    # Without its hash: it changes when further variants are published.
    described = await fetch_changing(urldefrag(files[name])[0], cache, limit=_MAX_DESCRIPTION)
    labels = _parse_labels(described, name)
    labelled = {
        plain: file
        for label in _list_compatible_labels(labels, level)[::-1]
        for file in files
        for plain, own in [split_variant_label(file)]
        if own == label and _variants_file(file) == name
    }
    best = best_wheel(labelled, target)
    if best is None:
        return None
    fetched = await _fetch_address(files[labelled[best]], cache)
    return LevelWheel(labelled[best], fetched.sha256, fetched.size)


async def _fetch_address(address: str, cache: Path) -> FetchedFile:
    url, fragment = urldefrag(address)
    algorithm, _, digest = fragment.partition("=")
    return await fetch(url, digest if algorithm == "sha256" else None, cache=cache)


def _parse_labels(text: bytes, file: str) -> Mapping[str, Any]:
    try:
        labels = json.loads(text)["variants"]
        if not isinstance(labels, dict):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise OutsideError(f"{file} of a package index does not list variants") from error
    return labels


def _list_compatible_labels(labels: Mapping[str, Any], level: str) -> Sequence[str]:
    """Return the labels with nothing but a level up to ``level``, the highest first."""
    allowed = [to_variant(name) for name in PROCESSOR_LEVELS]
    allowed = ["v1", *allowed[: allowed.index(to_variant(level)) + 1]]
    levels = {
        label: value
        for label, properties in labels.items()
        for value in allowed
        if _LABEL.fullmatch(label) and properties == {_NAMESPACE: {_FEATURE: [value]}}
    }
    return sorted(levels, key=lambda label: (-allowed.index(levels[label]), label))
