"""Wheels as trees: everything that is missing in one call of uv, then one tree for each."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu.environment.names import normalised
from danlu.errors import DanluError, OutsideError, ResolveError
from danlu.graph import Wheel
from danlu.sources.pypi import record
from danlu.sources.pypi.installing import (
    digests_of,
    plan_install,
    platform_options,
    requirement_line,
)
from danlu.sources.pypi.refusals import refusal
from danlu.sources.pypi.splitting import (
    Distribution,
    Incomplete,
    finish_tree,
    installed,
    split,
    take_all,
)
from danlu.sources.pypi.uv import Uv

if TYPE_CHECKING:
    from danlu.sources.pypi.ahead import Ahead

__all__ = ["Unpacked", "host_interpreters", "materialise"]


class Unpacked(msgspec.Struct, frozen=True):
    """A wheel's tree; its root is the image's root. Not yet finished: see :meth:`finish`."""

    wheel: Wheel
    tree: Path
    distribution: Distribution

    def finish(self) -> Path:
        """Rewrite what names this machine and fix modes and times; blocking, for a thread."""
        direct = None
        if self.wheel.source.kind == "url":
            direct = record.direct_url(self.wheel.source.location, self.wheel.sha256)
        finish_tree(
            self.tree,
            self.distribution,
            self.wheel.scheme,
            host_interpreters(),
            direct_url=direct,
        )
        return self.tree


def host_interpreters() -> tuple[str, ...]:
    """The paths of the Python uv runs with, as it may write them into scripts."""
    here = sys.executable
    chain = [here, os.path.realpath(here), str(Path(here).parent.resolve() / Path(here).name)]
    base = getattr(sys, "_base_executable", here)
    chain += [base, os.path.realpath(base)]
    return tuple(dict.fromkeys(chain))


async def materialise(
    uv: Uv,
    wheels: Sequence[Wheel],
    *,
    workspace: Path,
    files: Mapping[str, Path] | None = None,
    ahead: Ahead | None = None,
) -> list[Unpacked]:
    """Unpack ``wheels`` (of one scheme) into trees below ``workspace``, in their order.

    ``files`` maps a wheel's sha256 to its file where it does not come from an index; ``ahead`` may
    have them installed already. The network is used only where uv's cache lacks something. Raises
    :class:`OutsideError` naming a file that the indexes no longer have, :class:`ResolveError` where
    two wheels own one path.
    """
    files = files or {}
    lines = [requirement_line(one, files.get(one.sha256)) for one in wheels]
    try:
        prefix = await _installed_prefix(uv, wheels, lines, workspace, ahead)
        return _unpack(prefix, wheels, workspace)
    except Incomplete as incomplete:
        unlisted = incomplete.names
    found: list[Unpacked] = []
    together = [one for one in wheels if normalised(one.name) not in unlisted]
    groups = [together] if together else []
    groups += [[one] for one in wheels if normalised(one.name) in unlisted]
    for number, group in enumerate(groups):
        place = workspace / f"again-{number}"
        place.mkdir()
        some = [requirement_line(one, files.get(one.sha256)) for one in group]
        prefix = await _installed_prefix(uv, group, some, place)
        found += _unpack(prefix, group, place, alone=group is not together)
    return sorted(found, key=lambda one: wheels.index(one.wheel))


async def _installed_prefix(
    uv: Uv,
    wheels: Sequence[Wheel],
    lines: Sequence[str],
    workspace: Path,
    ahead: Ahead | None = None,
) -> Path:
    """A prefix with all of ``wheels``: from uv's cache alone where it has them, else online."""
    attempt = await ahead.take(wheels) if ahead else None
    if attempt is None:
        attempt = await plan_install(uv, wheels, lines, workspace / "prefix").run()
    if attempt.refused and attempt.offline:
        if uv.offline:
            raise OutsideError(
                "some Python packages are not in the cache, and --offline forbids to fetch them",
                details=(_missing(wheels, attempt.refused),),
            )
        prefix = workspace / "prefix-online"
        attempt = await plan_install(uv, wheels, lines, prefix, online=True).run()
    if attempt.refused:
        raise await _gone(uv, wheels, attempt.refused, workspace)
    if not attempt.offline:
        uv.note_fetched(digests_of(wheels))
    return attempt.prefix


def _unpack(
    prefix: Path, wheels: Sequence[Wheel], workspace: Path, *, alone: bool = False
) -> list[Unpacked]:
    found = {one.name: one for one in installed(prefix)}
    trees: dict[str, Path] = {}
    for wheel in wheels:
        name = normalised(wheel.name)
        if name not in found:
            raise OutsideError(f"{wheel.file} holds no distribution named {wheel.name}")
        trees[name] = workspace / "trees" / name
        trees[name].mkdir(parents=True)
    if alone:
        take_all(prefix, found[next(iter(trees))], wheels[0].scheme, *trees.values())
    else:
        split(prefix, [found[name] for name in trees], wheels[0].scheme, trees)
    return [
        Unpacked(one, trees[normalised(one.name)], found[normalised(one.name)]) for one in wheels
    ]


def _missing(wheels: Sequence[Wheel], message: str) -> str:
    named = [one for one in wheels if re.search(rf"\b{re.escape(one.name)}\b", message)]
    return ", ".join(f"{one.name} {one.version}" for one in named or wheels)


async def _gone(uv: Uv, wheels: Sequence[Wheel], message: str, workspace: Path) -> DanluError:
    """uv's refusal of an exact list: nearly always a file that an index no longer has."""
    error = refusal(message, doing="fetching the Python packages")
    if not isinstance(error, ResolveError):
        return error
    named = [one for one in wheels if re.search(rf"\b{re.escape(one.name)}\b", message)]
    if not named:
        return error
    gone = named[0]
    instead = await _replacement(uv, gone, workspace)
    return OutsideError(
        f"the package indexes no longer have {gone.file} ({gone.name} {gone.version}),"
        " which the lock names",
        hint=f"they have {instead}: `danlu lock --upgrade {gone.name}` takes it"
        if instead
        else f"they have no {gone.name} that fits",
        details=error.details,
    )


async def _replacement(uv: Uv, gone: Wheel, workspace: Path) -> str:
    """What the indexes have instead of a wheel: ``name version``, or nothing."""
    source = workspace / "replacement.txt"
    source.write_text(f"{gone.name}\n", encoding="utf-8")
    options = [*platform_options([gone]), "--no-deps", "--no-header"]
    code, output, _ = await uv.run(("pip", "compile"), [*options, "--no-annotate", str(source)])
    from danlu.sources.pypi.compiling import read_pins

    pins = read_pins(output) if not code else ()
    return f"{pins[0].name} {pins[0].version or pins[0].url}" if pins else ""
