"""Python packages: what was declared to exact files.

Two questions to uv, because the second is slow: which versions (the lock's stay where they can),
and which files, asked only for what is new. Where something has to be built to be understood, both
are asked inside the sandbox (:mod:`danlu.resolve.python_inside`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from danlu.environment.lock import LockedPackage
from danlu.environment.names import name_of, normalised
from danlu.errors import DanluError, ResolveError, Span
from danlu.resolve.pylock import import_pylock
from danlu.resolve.python_added import remember_answer, resolve_added
from danlu.resolve.python_check import unsatisfied
from danlu.resolve.python_inside import resolve_inside
from danlu.resolve.python_locked import locked_file, preference, stays
from danlu.resolve.python_requirements import write_requirements
from danlu.resolve.python_task import PythonRequest, Task
from danlu.resolve.python_wanted import Line, Wanted, gather
from danlu.sources.pypi import (
    File,
    Pin,
    Uv,
    compile_pins,
    locate_files,
    upgrade_options,
    uv_environment,
)
from danlu.sources.pypi.indexes import index_state, local_pages
from danlu.util.notes import note, noted

__all__ = ["resolve_python"]

#: How long (seconds) an answer of uv's is taken again; uv itself asks the large indexes no
#: earlier, whose pages say ``Cache-Control: max-age=600``.
_FRESH = 600.0


async def resolve_python(
    request: PythonRequest,
    old: Sequence[LockedPackage] = (),
    *,
    upgrade: Sequence[str] = (),
    upgrade_all: bool = False,
) -> tuple[LockedPackage, ...]:
    """Exact files for everything declared and all it needs, by normalised name.

    ``old`` keeps its versions where it can, except those of ``upgrade`` (all with
    ``upgrade_all``). Raises :class:`ResolveError` with uv's reason and the line to blame,
    :class:`OutsideError` naming an index that does not answer.
    """
    wanted = gather(request.declared, request.project, request.target)
    if not wanted.locked and not wanted.lines and not wanted.sources:
        return ()
    going = {normalised(name) for name in upgrade}
    kept = {one.name: one for one in old if not upgrade_all and one.name not in going}
    renew = upgrade_options(sorted(going), upgrade_all=upgrade_all)
    request.paths.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".resolve-", dir=request.paths.cache) as name:
        task = Task(request, wanted, kept, renew, Path(name))
        try:
            return await (_from_pylock(task) if wanted.locked else _resolve(task))
        except ResolveError as error:
            error.span = error.span or _naming(wanted, error)
            raise


async def _resolve(task: Task) -> tuple[LockedPackage, ...]:
    built = _must_be_built(task.wanted, task.kept)
    if not built:
        try:
            return await _resolve_wheels(task)
        except ResolveError as error:
            if not _wants_build(error) or ":all:" in task.wanted.formats.only_binary:
                raise
            if task.request.run_inside is None:
                raise
            task.request.say("some packages have no wheel that fits: resolving in the sandbox")
    if task.request.run_inside is None:
        what = "every package" if built[0] == ":all:" else built[0]
        raise ResolveError(
            f"{what} has to be built, and nothing can be run to build it",
            hint="danlu builds packages inside the environment only, never on this machine",
        )
    return await resolve_inside(task)


def _must_be_built(wanted: Wanted, kept: Mapping[str, LockedPackage]) -> list[str]:
    """What cannot be a wheel of an index: sources, by option, and what was locked as one before."""
    before = [
        one.name
        for one in kept.values()
        if one.source != "index"
        and not one.file.endswith(".whl")
        and wanted.formats.allow(one.name, wheel=False)
    ]
    return [*(one.spelled for one in wanted.sources), *sorted(wanted.formats.no_binary), *before]


def _wants_build(error: ResolveError) -> bool:
    """Whether uv refused because only a source distribution would do."""
    text = " ".join((error.message, error.hint, *error.details))
    return any(
        sign in text
        for sign in ("no usable wheels", "Wheels are required", "no wheels", "Building source")
    )


class _Answer(msgspec.Struct):
    """What uv once answered, and the times of this machine's own index pages then."""

    packages: tuple[LockedPackage, ...]
    pages: dict[str, int]


async def _resolve_wheels(task: Task) -> tuple[LockedPackage, ...]:
    """As :func:`_ask_uv`, or what uv answered to the same question a moment ago."""
    request, wanted = task.request, task.wanted
    if task.renew or wanted.spelled or any(" @ " in line.text for line in wanted.lines):
        return await _ask_uv(task)
    notes = request.paths.cache / "resolved"
    variables = uv_environment(request.indexes, request.project)
    setting = [
        sorted(line.text for line in wanted.constraints),
        sorted((name, sorted(hashes)) for name, hashes in wanted.hashes.items()),
        wanted.formats,
        request.target,
    ]
    question = [
        setting,
        sorted(line.text for line in wanted.lines),
        sorted(task.kept.items()),
        index_state(variables, request.project),
    ]
    answer = noted(notes, question, _Answer, seconds=_FRESH)
    if answer and answer.pages == local_pages(variables, [one.name for one in answer.packages]):
        return answer.packages
    added = await resolve_added(task, _uv(task), setting)
    packages = await _ask_uv(task) if added is None else _locked(added, wanted, task.kept)
    pages = local_pages(variables, [one.name for one in packages])
    note(notes, question, _Answer(packages, pages), seconds=_FRESH)
    remember_answer(task, packages, setting)
    return packages


def _uv(task: Task) -> Uv:
    request = task.request
    cache = request.paths.cache / "uv"
    return Uv(cache, request.project, request.indexes, offline=request.offline)


async def _ask_uv(task: Task) -> tuple[LockedPackage, ...]:
    request, wanted, kept, scratch = task.request, task.wanted, task.kept, task.scratch
    uv = _uv(task)
    sources = write_requirements(wanted, scratch)
    if not kept and not task.renew:
        files = await locate_files(uv, sources, request.target, scratch=scratch, dependencies=True)
        return _locked(files, wanted, {})
    preferences = [pin for one in kept.values() if (pin := preference(one)) is not None]
    pins = await compile_pins(
        uv, sources, request.target, scratch=scratch, preferences=preferences, renew=task.renew
    )
    same = {pin.name: one for pin in pins if (one := _unchanged(pin, kept, wanted)) is not None}
    new = [pin for pin in pins if pin.name not in same]
    files = ()
    if new:
        listing = scratch / "new.txt"
        listing.write_text("".join(f"{pin.line}\n" for pin in new), encoding="utf-8")
        files = await locate_files(uv, [str(listing)], request.target, scratch=scratch)
    return _locked(files, wanted, same)


def _unchanged(pin: Pin, kept: Mapping[str, LockedPackage], wanted: Wanted) -> LockedPackage | None:
    one = kept.get(pin.name)
    if one is None or pin.url:
        return None
    return one if stays(one, pin.version, wanted.formats) else None


def _locked(
    files: Sequence[File], wanted: Wanted, same: Mapping[str, LockedPackage]
) -> tuple[LockedPackage, ...]:
    found = {**same, **{file.name: locked_file(file, wanted) for file in files}}
    for name, one in found.items():
        admitted = wanted.hashes.get(name)
        if admitted and one.sha256 not in admitted:
            raise ResolveError(
                f"the file {one.file} has none of the hashes that the requirements file admits",
                hint="the hashes there may be those of other platforms' files only",
            )
    return tuple(found[name] for name in sorted(found))


def _naming(wanted: Wanted, error: DanluError) -> Span | None:
    """The line of the first requirement whose name uv's reason has."""
    text = " ".join((error.message, *error.details))
    lines: list[Line] = [one for one in wanted.lines if one.where is not None]
    for line in lines:
        name = line.text.split(" ")[0]
        for mark in "[<>=!~;@":
            name = name.partition(mark)[0]
        if name and any(name in word for word in text.replace("`", " ").split()):
            return line.where
    return None


async def _from_pylock(task: Task) -> tuple[LockedPackage, ...]:
    """The packages of a ``pylock.toml``, and what danlu adds by itself where it lacks that."""
    request, wanted = task.request, task.wanted
    path = wanted.locked[0]
    if len(wanted.locked) > 1:
        raise ResolveError(
            f"{path.name} and {wanted.locked[1].name} have a whole set of packages each",
            hint="one pylock.toml is all an environment can be made from",
        )
    packages = import_pylock(path, request.target, project=request.project)
    own = [one for one in request.declared if not one.source]
    wrong = unsatisfied(packages, gather(own, request.project, request.target), request.target)
    if wrong:
        raise ResolveError(
            f"{path.name} is not what is declared beside it: {wrong[0]}",
            details=tuple(wrong[1:]),
            hint="make it again from what the build file asks for",
        )
    have = {one.name for one in packages}
    lacking = tuple(one for one in wanted.lines if name_of(one.text) not in have)
    if not lacking:
        return packages
    pins = tuple(Line(f"{one.name}=={one.version}") for one in packages if one.version)
    added = await _resolve(replace(task, wanted=Wanted(lacking, pins)))
    both = (*packages, *(one for one in added if one.name not in have))
    return tuple(sorted(both, key=lambda one: one.name))
